#include "generators/driver/cuda_forms.h"

#include "generators/common/bad_input.h"
#include "generators/driver/cuda_target.h"
#include "schedules/cuda/operation.h"

namespace heed {

namespace {

using Module = Halide::Module;

CudaForm backward_tensor(Op op, BackwardSide side, int head_dim, bool is_plain) {
    const auto make = [side, is_plain](const OpSpec &spec) { return backward_tensor_cuda(spec, side, is_plain); };
    return {op, backward_tensor_threads, make, backward_tensor_shared_bytes(side, head_dim, is_plain), true, head_dim};
}

const std::vector<CudaForm> &cuda_forms() {
    static const std::vector<CudaForm> forms = {
        {Op::add, cuda_op_threads, add_cuda},
        {Op::attention_backward, backward_sums_threads, backward_sums_cuda, backward_sums_shared_bytes()},
        {Op::attention_backward_bias, cuda_op_threads, backward_bias_cuda, backward_bias_shared_bytes},
        backward_tensor(Op::attention_backward_keys, backward_keys, 64, false),
        backward_tensor(Op::attention_backward_keys, backward_keys, 128, false),
        backward_tensor(Op::attention_backward_keys, backward_keys, 256, false),
        backward_tensor(Op::attention_backward_keys_plain, backward_keys, 64, true),
        backward_tensor(Op::attention_backward_keys_plain, backward_keys, 128, true),
        backward_tensor(Op::attention_backward_queries, backward_queries, 64, false),
        backward_tensor(Op::attention_backward_queries, backward_queries, 128, false),
        backward_tensor(Op::attention_backward_queries, backward_queries, 256, false),
        backward_tensor(Op::attention_backward_queries_plain, backward_queries, 64, true),
        backward_tensor(Op::attention_backward_queries_plain, backward_queries, 128, true),
        {Op::attention_backward_sinks, cuda_op_threads, backward_sinks_cuda, backward_sinks_shared_bytes},
        {Op::attention_backward_stats, cuda_op_threads, backward_stats_cuda},
        {Op::attention_probs, probs_threads, attention_probs_cuda, probs_shared_bytes(), false, 0, probs_blocks},
        {Op::clip, cuda_op_threads, clip_cuda},
        {Op::clip_gradient, cuda_op_threads, clip_gradient_cuda},
        {Op::column_sums, cuda_op_threads, column_sums_cuda, column_sums_shared_bytes},
        {Op::copy_rows, cuda_op_threads, copy_rows_cuda},
        {Op::key_padding, cuda_op_threads, key_padding_cuda},
        {Op::kv_append, cuda_op_threads, kv_append_cuda, 0, false, 0, kv_append_blocks},
        {Op::kv_copy, cuda_op_threads, kv_copy_cuda},
        {Op::layer_norm, cuda_op_threads, layer_norm_cuda},
        {Op::layer_norm_gradient, cuda_op_threads, layer_norm_gradient_cuda},
        {Op::linear, linear_threads, linear_cuda, linear_shared_bytes(), false, 0, linear_blocks},
        {Op::linear, linear_core_threads, linear_cores_cuda, linear_cores_shared_bytes(), true, 0, linear_blocks},
        {Op::merge_splits, merge_splits_threads, merge_splits_cuda, 0, false, 0, merge_splits_blocks},
        {Op::merge_states, cuda_op_threads, merge_states_cuda},
        {Op::write_metadata, metadata_threads, write_metadata_cuda},
        {Op::rope, cuda_op_threads, rope_cuda},
        {Op::sequences, sequences_threads, sequences_cuda},
        {Op::transpose, cuda_op_threads, transpose_cuda, transpose_shared_bytes},
    };
    return forms;
}

}  // namespace

const CudaForm &find_cuda_form(const OpSpec &spec) {
    for (const CudaForm &form : cuda_forms()) {
        const bool fits = form.on_tensor_cores == (spec.isa == "sm80") && form.head_dim == spec.head_dim;
        if (form.op == spec.op && fits) return form;
    }
    throw BadInput(std::string("nothing makes op=") + op_name(spec.op) + ", isa=" + spec.isa);
}

}  // namespace heed
