#include "generators/driver/attention.h"

#include <algorithm>
#include <cstdio>
#include <sstream>

#include "generators/attention/check_score_mod.h"
#include "generators/attention/fast_tanh.h"
#include "generators/attention/kernel.h"
#include "generators/contract/operations.h"
#include "generators/cuda/attention_cuda.h"
#include "generators/cuda/attention_program.h"
#include "generators/driver/autoscheduler.h"
#include "generators/driver/cuda_target.h"
#include "generators/driver/output.h"
#include "generators/driver/parameters.h"
#include "generators/lowering/scratch_bytes.h"
#include "schedules/attention_cuda_tiles.h"
#include "schedules/schedules.h"

namespace heed {

namespace {

using Halide::Target;

cuda::AttentionTile tile_of(const std::string &isa, const AttentionConfig &config) {
    const bool tensor_cores = isa == "sm80";
    return config.phase == Phase::decode ? decode_tile_cuda(config, tensor_cores)
                                         : prefill_tile_cuda(config, tensor_cores);
}

std::string cuda_error(const std::string &isa, const AttentionConfig &config) {
    const int widest = std::max(config.head_dim, config.head_dim_v);
    if (widest > max_cuda_head_dim) {
        return "head_dim = " + std::to_string(widest) + " is not allowed with CUDA: 1.." +
               std::to_string(max_cuda_head_dim) + ", or any";
    }
    if (config.phase == Phase::decode && !config.has_gqa) {
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

int head_dim_of(const std::string &text) {
    if (text == "any") {
        return 0;
    }
    size_t end = 0;
    const int value = text.find_first_not_of("0123456789") == std::string::npos ? std::stoi(text, &end) : -1;
    if (value < 1 || value > max_head_dim) {
        throw BadInput("head_dim = '" + text + "' is not allowed: 1..640, or any");
    }
    return value;
}

struct Row {
    std::string name, isa, schedule, score_mod;
    Target target;
    AttentionConfig config;
};

std::string feature_words() {
    std::string words;
#define HEED_ADD_WORD(name, bit) words += " " #name;
    HEED_FEATURES(HEED_ADD_WORD)
#undef HEED_ADD_WORD
    return words;
}

void read_features(const std::string &text, AttentionConfig &config) {
    std::istringstream features(text == "none" ? "" : text);
    for (std::string feature; std::getline(features, feature, '_');) {
        bool *flag = nullptr;
#define HEED_FIND_FLAG(name, bit)                                                                                      \
    if (feature == #name) flag = &config.has_##name;
        HEED_FEATURES(HEED_FIND_FLAG)
#undef HEED_FIND_FLAG
        if (flag == nullptr || (feature == "gqa" && config.phase == Phase::prefill)) {
            throw BadInput("features = '" + text + "' is not allowed: none, or joined by _ of" + feature_words() +
                           "; gqa in decode only");
        }
        *flag = true;
    }
}

ElementType type_of(const std::string &name) {
    for (ElementType type : {ElementType::f16, ElementType::bf16, ElementType::i8}) {
        if (name == name_of(type)) return type;
    }
    return ElementType::f32;
}

// What the generator was linked with, which rows name exactly when it is there.
ScoreMod linked_score_mod(const std::string &name, bool on_cuda) {
    try {
        const ScoreMod mod = score_mod();
        const bool empty = !mod.logit && !mod.visible && !mod.block_visible;
        if (empty != (name == "none")) {
            throw BadInput(empty ? "heed::score_mod() sets none of ScoreMod's logit, visible and block_visible"
                                 : "rows of this generator must name it");
        }
        check_score_mod(mod, on_cuda);
        return with_fast_tanh(mod);
    } catch (const std::exception &error) {
        throw BadInput("score_mod = '" + name + "' is not allowed: " + error.what());
    }
}

Row row_of(Options &options) {
    Row row;
    row.name = options.get("name");
    const std::string dtype = options.choice("dtype", "f32", {"f32", "f16", "bf16"});
    row.config.dtype = type_of(dtype);
    row.config.kv_dtype = type_of(options.choice("kv_dtype", dtype, {dtype, "i8"}));
    row.config.paged = options.choice("storage", "contiguous", {"contiguous", "paged"}) == "paged";
    row.isa = options.choice("isa", "", all_isas());
    row.schedule = is_cuda_isa(row.isa) ? options.choice("schedule", "cuda", {"cuda", "wide"})
                   : has_bf16_dots(row.isa)
                       ? options.choice("schedule", "x86", {"x86"})
                       : options.choice("schedule", "x86", {"x86", "default", "Mullapudi2016", "Adams2019"});
    row.config.phase = options.choice("phase", "", {"prefill", "decode"}) == "prefill" ? Phase::prefill : Phase::decode;
    row.config.head_dim = head_dim_of(options.get("head_dim"));
    row.config.head_dim_v = head_dim_of(options.get("head_dim_v", options.get("head_dim")));
    read_features(options.get("features", "none"), row.config);
    row.score_mod = options.get("score_mod", "none");
    row.config.score_mod = linked_score_mod(row.score_mod, is_cuda_isa(row.isa));
    if (is_cuda_isa(row.isa)) {
        row.config.wide_group = row.schedule == "wide";
        fit_cuda_tiles(row.isa, row.config);
        if (const std::string error = cuda_error(row.isa, row.config); !error.empty()) throw BadInput(error);
        return row;
    }
    row.target = target_of_isa(row.isa);
    row.config.bf16_dots = has_bf16_dots(row.isa);
    row.config.bf16_tiles = row.isa == "amx";
    if (row.config.per_logit()) {
        // A mask broadcast over heads and batch has few elements but extents whose product passes 2^31.
        row.target.set_feature(Target::LargeBuffers);
    }
    if (const std::string extra = options.get("extra_features", "none"); extra != "none") {
        row.target = Target(row.target.to_string() + "-" + extra);
    }
    Machine machine = machine_of(row.target);
    if (options.has("l2_bytes")) machine.l2_bytes = options.number("l2_bytes");
    fit_tiles(machine, row.config);
    read_parameters(options, row.config);
    for (const std::string &error : {row.config.error(), row.config.block_error()}) {
        if (!error.empty()) throw BadInput(error);
    }
    return row;
}

Passes schedule(const Row &row, AttentionKernel &kernel, Halide::Pipeline &pipeline) {
    if (row.schedule == "default") return schedule_attention_default(kernel.stages, row.config);
    if (row.schedule == "x86") {
        const bool prefill = row.config.phase == Phase::prefill;
        return (prefill ? schedule_attention_prefill_x86 : schedule_attention_decode_x86)(kernel.stages, row.config);
    }
    apply_autoscheduler(row.schedule, kernel, pipeline, row.target);
    Passes passes;
    add_attention_passes(&passes, row.config, {});
    return passes;
}

// Its name, "" for none, and a letter for the type of each buffer.
std::string score_mod_fields(const Row &row) {
    std::string types;
    for (const ScoreElement element : row.config.score_mod.buffers) types += element == ScoreElement::f32 ? 'f' : 'i';
    return "\"" + (row.config.has_score_mod() ? row.score_mod : "") + "\", \"" + types + "\"";
}

std::string registry_line(const Row &row, int64_t scratch) {
    const AttentionConfig &c = row.config;
    std::ostringstream line;
    uint32_t features = 0;
#define HEED_ADD_BIT(name, bit) features |= c.has_##name ? uint32_t{feature_##name} : 0;
    HEED_FEATURES(HEED_ADD_BIT)
#undef HEED_ADD_BIT
    line << "HEED_KERNEL(" << row.name << ", " << (c.phase == Phase::prefill ? "prefill" : "decode") << ", "
         << name_of(c.dtype) << ", " << name_of(c.kv_dtype) << ", " << c.head_dim << ", " << c.head_dim_v << ", "
         << features << ", " << (c.paged ? "paged" : "contiguous") << ", " << row.isa << ", " << c.row_block << ", "
         << c.kv_block << ", " << scratch << ", \"" << row.schedule << "\", " << score_mod_fields(row) << ", "
         << attention_arguments_hash << "u)\n";
    return line.str();
}

void generate_on_cuda(const Row &row, Options &options, const std::string &base) {
    const cuda::Toolkit toolkit = read_toolkit(options, row.isa);
    options.refuse_unknown();
    const cuda::AttentionTile tile = tile_of(row.isa, row.config);
    const Halide::Module module = cuda::attention_module(row.name, row.config, tile, cuda_target());
    const cuda::RewriteOptions rewrite = {capability_of(row.isa), tile.threads(), tile.blocks};
    write_cuda_kernel(cuda::assemble(module, rewrite, toolkit, base), cuda::attention_shared_bytes(row.config, tile),
                      base);
    write_registry_line(registry_line(row, 0), base);
}

}  // namespace

void generate_attention(Options &options) {
    const Row row = row_of(options);
    const bool on_cuda = is_cuda_isa(row.isa);
    if (!on_cuda && options.choice("parameters", "none", {"none", "list"}) == "list") {
        options.refuse_unknown();
        std::puts(describe_parameters(row.config).c_str());
        return;
    }
    const std::string base = options.get("out") + "/" + row.name;
    if (on_cuda) return generate_on_cuda(row, options, base);
    const std::set<std::string> more = options.set_of("write", {"stmt", "assembly"});
    options.refuse_unknown();

    AttentionKernel kernel(row.config);
    Halide::Pipeline pipeline = kernel.pipeline();
    const Passes passes = schedule(row, kernel, pipeline);
    passes.add_to(pipeline);
    ScratchBytes scratch;
    pipeline.add_custom_lowering_pass(&scratch, [] {});
    const Halide::Module module = pipeline.compile_to_module(kernel.arguments(), row.name, row.target);
    check_outputs(module, kernel.output_types());
    passes.check();
    write_module(module, more, base);
    write_registry_line(registry_line(row, row.schedule == "x86" ? scratch.per_task() : -1), base);
}

}  // namespace heed
