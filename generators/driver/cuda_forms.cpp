#include "generators/cuda/backward_bias.h"
#include "generators/cuda/backward_cores.h"
#include "generators/cuda/backward_rows.h"
#include "generators/cuda/backward_tiles.h"
#include "generators/cuda/gradient_rows.h"
#include "generators/cuda/layer_program.h"
#include "generators/cuda/layer_rows.h"
#include "generators/cuda/linear_cores.h"
#include "generators/cuda/linear_tiles.h"
#include "generators/cuda/matrix_moves.h"
#include "generators/cuda/merge_rows.h"
#include "generators/cuda/merge_splits.h"
#include "generators/cuda/metadata_ops.h"
#include "generators/cuda/norm_rows.h"
#include "generators/cuda/probs_rows.h"
#include "generators/cuda/token_moves.h"
#include "generators/driver/cuda_target.h"
#include "generators/driver/operation_forms.h"
#include "schedules/attention_cuda_tiles.h"

namespace heed {

namespace {

using Module = Halide::Module;
using Target = Halide::Target;

std::function<Module(const OpSpec &)> typed(Module (*make)(const std::string &, ElementType, const Target &)) {
    return [make](const OpSpec &spec) { return make(spec.name, spec.type(), cuda_target()); };
}
std::function<Module(const OpSpec &)> untyped(Module (*make)(const std::string &, const Target &)) {
    return [make](const OpSpec &spec) { return make(spec.name, cuda_target()); };
}

Module launched_probs(const OpSpec &spec) {
    const ElementType keys = spec.kv_dtype == "i8" ? ElementType::i8 : spec.type();
    return cuda::attention_probs_module(spec.name, spec.type(), keys, cuda_target());
}

CudaForm backward_cores(Op op, BackwardSide side, int head_dim) {
    const cuda::BackwardTile tile = backward_tile_cuda(side, head_dim);
    const auto make = [side, tile](const OpSpec &spec) {
        return cuda::backward_cores_module(spec.name, spec.type(), side, tile, cuda_target());
    };
    return {op, {"f16", "bf16"}, "sm80", head_dim, tile.threads(), make, cuda::backward_cores_shared_bytes(side, tile)};
}

}  // namespace

const std::vector<CudaForm> &cuda_forms() {
    using namespace cuda;
    static const std::vector<std::string> floats = {"f32", "f16", "bf16"}, bytes = {"u8"}, words = {"i32"};
    static const std::vector<CudaForm> forms = {
        {Op::add, floats, "sm75", 0, layer_threads, typed(add_module)},
        {Op::attention_backward, floats, "sm75", 0, backward_tile_threads, typed(backward_tiles_module),
         backward_tile_shared_bytes()},
        {Op::attention_backward_bias, floats, "sm75", 0, bias_threads, typed(backward_bias_module), bias_shared_bytes},
        backward_cores(Op::attention_backward_keys, backward_keys, 64),
        backward_cores(Op::attention_backward_keys, backward_keys, 128),
        backward_cores(Op::attention_backward_keys, backward_keys, 256),
        backward_cores(Op::attention_backward_queries, backward_queries, 64),
        backward_cores(Op::attention_backward_queries, backward_queries, 128),
        backward_cores(Op::attention_backward_queries, backward_queries, 256),
        {Op::attention_backward_sinks, floats, "sm75", 0, backward_threads, typed(backward_sinks_module),
         sinks_shared_bytes},
        {Op::attention_backward_stats, floats, "sm75", 0, backward_threads, typed(backward_stats_module)},
        {Op::attention_probs, floats, "sm75", 0, probs_threads, launched_probs},
        {Op::clip, floats, "sm75", 0, layer_threads, typed(clip_module)},
        {Op::clip_gradient, floats, "sm75", 0, layer_threads, typed(clip_gradient_module)},
        {Op::column_sums, floats, "sm75", 0, layer_threads, typed(column_sums_module), column_sums_shared_bytes},
        {Op::copy_rows, floats, "sm75", 0, layer_threads, typed(copy_rows_module)},
        {Op::key_padding, bytes, "sm75", 0, layer_threads, untyped(key_padding_module)},
        {Op::kv_append, floats, "sm75", 0, move_threads, typed(kv_append_module)},
        {Op::kv_copy, bytes, "sm75", 0, move_threads, untyped(kv_copy_module)},
        {Op::layer_norm, floats, "sm75", 0, layer_threads, typed(layer_norm_module)},
        {Op::layer_norm_gradient, floats, "sm75", 0, layer_threads, typed(layer_norm_gradient_module)},
        {Op::linear, floats, "sm75", 0, linear_threads, typed(linear_module), linear_shared_bytes()},
        {Op::linear, {"f16", "bf16"}, "sm80", 0, core_threads, typed(linear_cores_module), linear_cores_shared_bytes()},
        {Op::merge_splits, floats, "sm75", 0, merge_splits_threads, typed(merge_splits_module)},
        {Op::merge_states, floats, "sm75", 0, merge_threads, typed(merge_states_module)},
        {Op::put_words, words, "sm75", 0, 1, untyped(put_words_module)},
        {Op::rope, floats, "sm75", 0, move_threads, typed(rope_module)},
        {Op::sequences, words, "sm75", 0, sequences_threads, untyped(sequences_module)},
        {Op::transpose, floats, "sm75", 0, layer_threads, typed(transpose_module), transpose_shared_bytes()},
    };
    return forms;
}

}  // namespace heed
