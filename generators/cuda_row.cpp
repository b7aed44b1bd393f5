#include "cuda_row.h"

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "attention_cuda_tiles.h"
#include "cuda/attention_cuda.h"
#include "cuda/attention_program.h"
#include "cuda/backward_bias.h"
#include "cuda/backward_cores.h"
#include "cuda/backward_rows.h"
#include "cuda/backward_tiles.h"
#include "cuda/device_binary.h"
#include "cuda/gradient_rows.h"
#include "cuda/layer_program.h"
#include "cuda/layer_rows.h"
#include "cuda/linear_cores.h"
#include "cuda/linear_tiles.h"
#include "cuda/matrix_moves.h"
#include "cuda/merge_rows.h"
#include "cuda/merge_splits.h"
#include "cuda/metadata_ops.h"
#include "cuda/norm_rows.h"
#include "cuda/probs_rows.h"
#include "cuda/token_moves.h"

namespace heed {
namespace {

using Halide::OutputFileType;
using Halide::Target;

constexpr int tensor_core_capability = 80, least_capability = 75;

Target cuda_target() {
    // Halide knows capabilities up to 8.6; the rewriter and ptxas decide what the code is assembled for.
    return Target(Target::Linux, Target::X86, 64,
                  {Target::NoRuntime, Target::NoBoundsQuery, Target::UserContext, Target::SSE41, Target::LargeBuffers,
                   Target::CUDA, Target::CUDACapability70});
}

cuda::Toolkit toolkit_of(Options &options, int least) {
    const std::set<std::string> more = options.set_of("write", {"ptx", "cubin"});
    cuda::Toolkit toolkit{
        options.get("ptxas"), options.get("fatbinary"), {}, more.count("ptx") != 0, more.count("cubin") != 0};
    // The SLP vectorizer finds nothing in unrolled warp programs and takes three quarters of LLVM's time to see that:
    // at a depth of 1 the PTX of every kernel is the same.
    setenv("HL_LLVM_ARGS", "-slp-recursion-max-depth=1", 1);
    std::istringstream list(options.get("capabilities"));
    for (int capability = 0; list >> capability;) {
        if (capability >= least) toolkit.capabilities.push_back(capability);
    }
    if (toolkit.capabilities.empty()) {
        throw BadInput("capabilities = '" + options.get("capabilities") + "' is not allowed: at least one of " +
                       std::to_string(least) + " or more");
    }
    return toolkit;
}

cuda::AttentionTile tile_of(const std::string &isa, const AttentionConfig &config) {
    const bool tensor_cores = isa == "sm80";
    return config.phase == Phase::decode ? decode_tile_cuda(config, tensor_cores)
                                         : prefill_tile_cuda(config, tensor_cores);
}

void write(const cuda::DeviceBinary &binary, int shared_bytes, const std::string &base) {
    binary.module.compile({{OutputFileType::object, base + ".o"}});
    std::ofstream limits(base + ".limits");
    for (const auto &[capability, statistics] : binary.statistics) {
        limits << "sm_" << capability << " registers " << statistics.registers << " spill_bytes "
               << statistics.spill_bytes << " shared_bytes " << shared_bytes << "\n";
    }
    if (!limits.flush()) throw BadInput("cannot write " + base + ".limits");
}

struct CudaOp {
    int threads;  // of a block
    Halide::Module (*make)(const std::string &name, ElementType type, const Target &target);
    int shared_bytes = 0;
};

template <cuda::BackwardSide side, int head_dim>
CudaOp backward_op() {
    const cuda::BackwardTile tile = backward_tile_cuda(side, head_dim);
    return {tile.threads(),
            [](auto &name, ElementType type, auto &target) {
                return cuda::backward_cores_module(name, type, side, backward_tile_cuda(side, head_dim), target);
            },
            cuda::backward_cores_shared_bytes(side, tile)};
}

// By operation with its head dim, int8 keys, and capability.
const std::map<std::string, CudaOp> cuda_ops = {
    {"add_sm75", {cuda::layer_threads, cuda::add_module}},
    {"attention_backward_sm75",
     {cuda::backward_tile_threads, cuda::backward_tiles_module, cuda::backward_tile_shared_bytes()}},
    {"attention_backward_bias_sm75", {cuda::bias_threads, cuda::backward_bias_module, cuda::bias_shared_bytes}},
    {"attention_backward_keys_d64_sm80", backward_op<cuda::backward_keys, 64>()},
    {"attention_backward_keys_d128_sm80", backward_op<cuda::backward_keys, 128>()},
    {"attention_backward_keys_d256_sm80", backward_op<cuda::backward_keys, 256>()},
    {"attention_backward_queries_d64_sm80", backward_op<cuda::backward_queries, 64>()},
    {"attention_backward_queries_d128_sm80", backward_op<cuda::backward_queries, 128>()},
    {"attention_backward_queries_d256_sm80", backward_op<cuda::backward_queries, 256>()},
    {"attention_backward_sinks_sm75", {cuda::backward_threads, cuda::backward_sinks_module, cuda::sinks_shared_bytes}},
    {"attention_backward_stats_sm75", {cuda::backward_threads, cuda::backward_stats_module}},
    {"attention_probs_sm75",
     {cuda::probs_threads, [](auto &name, ElementType type,
                              auto &target) { return cuda::attention_probs_module(name, type, type, target); }}},
    {"attention_probs_kvi8_sm75",
     {cuda::probs_threads,
      [](auto &name, ElementType type, auto &target) {
          return cuda::attention_probs_module(name, type, ElementType::i8, target);
      }}},
    {"clip_gradient_sm75", {cuda::layer_threads, cuda::clip_gradient_module}},
    {"clip_sm75", {cuda::layer_threads, cuda::clip_module}},
    {"column_sums_sm75", {cuda::layer_threads, cuda::column_sums_module, cuda::column_sums_shared_bytes}},
    {"copy_rows_sm75", {cuda::layer_threads, cuda::copy_rows_module}},
    {"key_padding_sm75",
     {cuda::layer_threads,
      [](auto &name, ElementType, auto &target) { return cuda::key_padding_module(name, target); }}},
    {"kv_append_kvi8_sm75", {cuda::move_threads, cuda::kv_append_module}},
    {"kv_copy_sm75",
     {cuda::move_threads, [](auto &name, ElementType, auto &target) { return cuda::kv_copy_module(name, target); }}},
    {"layer_norm_gradient_sm75", {cuda::layer_threads, cuda::layer_norm_gradient_module}},
    {"layer_norm_sm75", {cuda::layer_threads, cuda::layer_norm_module}},
    {"linear_sm75", {cuda::linear_threads, cuda::linear_module, cuda::linear_shared_bytes()}},
    {"linear_sm80", {cuda::core_threads, cuda::linear_cores_module, cuda::linear_cores_shared_bytes()}},
    {"merge_splits_sm75", {cuda::merge_splits_threads, cuda::merge_splits_module}},
    {"merge_states_sm75", {cuda::merge_threads, cuda::merge_states_module}},
    {"put_words_sm75", {1, [](auto &name, ElementType, auto &target) { return cuda::put_words_module(name, target); }}},
    {"rope_sm75", {cuda::move_threads, cuda::rope_module}},
    {"sequences_sm75",
     {cuda::sequences_threads,
      [](auto &name, ElementType, auto &target) { return cuda::sequences_module(name, target); }}},
    {"transpose_sm75", {cuda::layer_threads, cuda::transpose_module, cuda::transpose_shared_bytes()}},
};

std::string key_of(const std::string &op, const std::string &isa, bool codes) {
    return op + (codes ? "_kvi8_" : "_") + isa;
}

}  // namespace

bool is_cuda_isa(const std::string &isa) { return isa == "sm75" || isa == "sm80"; }

std::string cuda_error(const std::string &isa, const AttentionConfig &config) {
    const int widest = std::max(config.head_dim, config.head_dim_v);
    if (widest > AttentionConfig::max_cuda_head_dim) {
        return "head_dim = " + std::to_string(widest) + " is not allowed with CUDA: 1.." +
               std::to_string(AttentionConfig::max_cuda_head_dim) + ", or any";
    }
    if (config.phase == Phase::decode && !config.packs_group) {
        return "phase = decode without the feature gqa is not allowed with CUDA";
    }
    if (config.dtype == ElementType::f32 && isa == "sm80") return "dtype = f32 is not allowed with isa=sm80: f16, bf16";
    if (config.wide_group &&
        (isa != "sm80" || config.phase != Phase::decode || config.any_head_dim() || widest > 128)) {
        return "schedule = wide is not allowed here: decode rows of sm80, head dims of up to 128";
    }
    return config.error();
}

void fit_cuda_tiles(const std::string &isa, AttentionConfig &config) {
    const cuda::AttentionTile tile = tile_of(isa, config);
    config.row_block = tile.rows();
    config.kv_block = config.masked_block = tile.kv_block;
    config.lanes = 16;  // elements to which a row is padded
    config.key_tile = 8;
}

void generate_cuda_attention(const std::string &name, const std::string &isa, const AttentionConfig &config,
                             Options &options, const std::string &base) {
    const int capability = isa == "sm80" ? tensor_core_capability : least_capability;
    const cuda::Toolkit toolkit = toolkit_of(options, capability);
    options.refuse_unknown();
    const cuda::AttentionTile tile = tile_of(isa, config);
    const Halide::Module module = cuda::attention_module(name, config, tile, cuda_target());
    write(cuda::assemble(module, {capability, tile.threads(), tile.blocks}, toolkit, base),
          cuda::attention_shared_bytes(config, tile), base);
}

bool has_cuda_op(const std::string &op, const std::string &isa, bool codes) {
    return cuda_ops.count(key_of(op, isa, codes)) != 0;
}

void generate_cuda_op(const std::string &name, const std::string &op, const std::string &isa, ElementType type,
                      bool codes, Options &options, const std::string &base) {
    const int capability = isa == "sm80" ? tensor_core_capability : least_capability;
    const cuda::Toolkit toolkit = toolkit_of(options, capability);
    options.refuse_unknown();
    const CudaOp &row = cuda_ops.at(key_of(op, isa, codes));
    const Halide::Module module = row.make(name, type, cuda_target());
    write(cuda::assemble(module, {capability, row.threads}, toolkit, base), row.shared_bytes, base);
}

}  // namespace heed
