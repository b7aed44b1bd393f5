#include "runtime/cuda/call.h"

#include "runtime/cuda/sequence_table.h"
#include "runtime/kernel_call.h"
#include "runtime/make_call.h"
#include "runtime/sequences.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

// As CUDA kernels get a tensor: with a batch extent, along which ragged ones do not move.
KernelBuffer with_batch(KernelBuffer buffer, const View &view, int32_t batch) {
    if (buffer.extent[3] != batch) buffer.stride[3] = 0;
    buffer.extent[3] = batch;
    if (view.span == 0) {  // k or v of no keys: a view without strides
        buffer.data = nullptr;
        buffer.stride[0] = 1;
    }
    return buffer;
}

// The same of scales.
KernelBuffer scales_with_batch(KernelBuffer buffer, int32_t batch) {
    if (buffer.extent[2] != batch) buffer.stride[2] = 0;
    buffer.extent[2] = batch;
    return buffer;
}

// Packed; ragged tokens do not move with the batch index.
KernelBuffer states_buffer(const heed_plan &plan, const heed_args &args) {
    const heed_problem &p = plan.problem;
    if (plan.splits.num_splits == 1) return {nullptr, HEED_F32, 4, {}, {1}};
    const int32_t floats = state_floats(p.head_dim_v), states = p.num_heads * plan.splits.num_splits;
    const int32_t of_sequence = p.q_storage == HEED_Q_VARLEN ? 0 : states * floats * p.max_q_len;
    return {static_cast<char *>(args.workspace) + plan.workspace.states,
            HEED_F32,
            4,
            {floats, states, static_cast<int32_t>(plan.views.out.extent[1]), p.batch},
            {1, floats, states * floats, of_sequence}};
}

}  // namespace

KernelCall make_cuda_call(const heed_plan &plan, const heed_args &args) {
    KernelCall call = make_call(plan, args, {});
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    const int32_t kv_batch = p.kv_storage == HEED_KV_PAGED ? p.num_pages : p.batch;
    call.q = with_batch(call.q, views.q, p.batch);
    call.k = with_batch(kernel_buffer(args.k.data, p.kv_dtype, views.k), views.k, kv_batch);
    call.v = with_batch(kernel_buffer(args.v.data, p.kv_dtype, views.v), views.v, kv_batch);
    call.k_scale = scales_with_batch(call.k_scale, kv_batch);
    call.v_scale = scales_with_batch(call.v_scale, kv_batch);
    call.out = with_batch(call.out, views.out, p.batch);
    call.lse = with_batch(call.lse, views.out, p.batch);
    call.states = states_buffer(plan, args);
    const VisibleRange visible = visible_range(p, uniform_sequence(p));
    call.tasks = sequence_table(plan, args);
    call.key_blocks = {nullptr, HEED_I32, 2, {1, 1}, {}};
    call.swept_tasks = {nullptr, HEED_I32, 1, {1}, {}};
    call.uniform = plan.sequence_kernel == nullptr;
    call.visible_begin = visible.begin;
    call.visible_end = visible.end;
    call.position_offset = visible.position_offset;
    call.device_status = p.metadata_on_device ? reinterpret_cast<uintptr_t>(args.device_status) : 0;
    if (copies_pages(p)) {
        call.page_table.data = static_cast<char *>(args.workspace) + plan.workspace.pages;
        call.page_table.stride[1] = copied_pages(p);
    }
    return call;
}

}  // namespace heed
