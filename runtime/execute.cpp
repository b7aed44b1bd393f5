// heed_execute: all checks of pointers and values, the private copy of the metadata, then one kernel call.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <limits>

#include "dropout.h"
#include "halide_bridge.h"
#include "inputs.h"
#include "kernel_call.h"
#include "plan.h"
#include "status.h"
#include "tasks.h"

namespace heed {
namespace {

// Pointers, capacities, alignment, overlaps; nothing is read through them yet.
heed_status check_pointers(const heed_plan &plan, const heed_args &args) {
    const heed_problem &p = plan.problem;
    const int64_t needed = plan.workspace.total;
    MemoryRanges ranges;
    heed_status status = ranges.add("out", args.out, p.dtype, plan.views.out.span, Access::write);
    if (!status && p.want_lse) status = ranges.add("lse", args.lse, HEED_F32, plan.views.lse.span, Access::write);
    if (!status && args.workspace_bytes < static_cast<size_t>(needed)) {
        return fail(HEED_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu; the plan needs %" PRId64, args.workspace_bytes,
                    needed);
    }
    if (!status) {
        status = ranges.add("workspace", args.workspace, needed / scratch_alignment, scratch_alignment, Access::write);
    }
    return status ? status : add_inputs(p, plan.views, args, Reads::all, &ranges);
}

// The answer without keys: out = +0, lse = -inf, or the sink.
void fill_without_keys(const heed_plan &plan, const heed_args &args) {
    const View &out = plan.views.out, &lse = plan.views.lse;
    const auto row_bytes = static_cast<size_t>(out.extent[3] * dtype_bytes(plan.problem.dtype));
    for (int64_t b = 0; b < out.extent[0]; b++) {
        for (int64_t i = 0; i < out.extent[1]; i++) {
            for (int64_t h = 0; h < out.extent[2]; h++) {
                const int64_t offset = b * out.stride[0] + i * out.stride[1] + h * out.stride[2];
                std::memset(static_cast<char *>(args.out.data) + offset * dtype_bytes(plan.problem.dtype), 0,
                            row_bytes);
            }
        }
    }
    for (int64_t b = 0; b < lse.extent[0]; b++) {
        for (int64_t h = 0; h < lse.extent[1]; h++) {
            float *row = static_cast<float *>(args.lse.data) + b * lse.stride[0] + h * lse.stride[1];
            const float value = plan.problem.has_sink ? args.sink[h] : -std::numeric_limits<float>::infinity();
            for (int64_t i = 0; i < lse.extent[2]; i++) row[i * lse.stride[2]] = value;
        }
    }
}

// Mask and bias: full extents; one element with strides 0 where the problem has none.
KernelBuffer per_logit_buffer(const heed_problem &p, bool used, const heed_tensor &tensor, heed_dtype dtype,
                              const View &view, const void *element) {
    if (used) return kernel_buffer(tensor.data, dtype, view);
    return {const_cast<void *>(element), dtype, 4, {p.max_kv_len, p.max_q_len, p.num_heads, p.batch}, {}};
}

KernelBuffer per_head_buffer(const heed_problem &p, bool used, const float *values, const float *element) {
    return {const_cast<float *>(used ? values : element), HEED_F32, 1, {p.num_heads}, {used ? 1 : 0}};
}

// [pages, slots, kv heads], packed; else one element.
KernelBuffer scale_buffer(const heed_problem &p, const heed_tensor &tensor, const View &view, const View &cache,
                          const float *element) {
    const auto extent = [&](int i) { return static_cast<int32_t>(cache.extent[i]); };
    KernelBuffer buffer = {const_cast<float *>(element), HEED_F32, 3, {extent(2), extent(1), extent(0)}, {1}};
    if (p.kv_dtype != HEED_I8) return buffer;
    buffer.data = tensor.data;
    for (int i = 0; i < 3; i++) buffer.stride[i] = static_cast<int32_t>(view.stride[3 - i]);
    return buffer;
}

// lse in the shape of out, with stride 0 along head_dim_v. When the caller wants none it lands in the workspace,
// packed.
KernelBuffer lse_buffer(const heed_plan &plan, const heed_args &args, char *workspace) {
    const View &view = plan.views.lse,
               &out = plan.views.out;  // [batch, num_heads, tokens, 1]; [batch, tokens, heads, d]
    KernelBuffer buffer = kernel_buffer(workspace + plan.workspace.lse, HEED_F32, out);
    const auto tokens = static_cast<int32_t>(out.extent[1]), heads = static_cast<int32_t>(out.extent[2]);
    const int32_t packed[3] = {heads * tokens, tokens, 1};
    int32_t stride[3];
    for (int32_t i = 0; i < 3; i++) {
        stride[i] = plan.problem.want_lse ? static_cast<int32_t>(view.stride[i]) : packed[i];
    }
    if (plan.problem.want_lse) buffer.data = args.lse.data;
    const int32_t innermost_first[4] = {0, stride[1], stride[2], stride[0]};
    std::copy(innermost_first, innermost_first + 4, buffer.stride);
    return buffer;
}

void fill_tensors(const heed_plan &plan, const heed_args &args, char *workspace, KernelCall *call) {
    static const uint8_t may_attend = 1;
    static const float zero = 0, no_sink = -std::numeric_limits<float>::infinity();
    static const int32_t no_page = 0;
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    const bool bias_is_16 = bias_form(p) == bias_of_dtype;
    const bool paged = p.kv_storage == HEED_KV_PAGED;
    call->q = kernel_buffer(args.q.data, p.dtype, views.q);
    const KernelViews kv = kernel_views(p, views);
    call->k = kernel_buffer(args.k.data, p.kv_dtype, kv.k);
    call->v = kernel_buffer(args.v.data, p.kv_dtype, kv.v);
    call->k_scale = scale_buffer(p, args.k_scale, views.kv_scale, kv.k, &zero);
    call->v_scale = scale_buffer(p, args.v_scale, views.kv_scale, kv.k, &zero);
    call->mask = per_logit_buffer(p, p.has_mask, args.mask, HEED_U8, views.mask, &may_attend);
    call->bias = per_logit_buffer(p, p.has_bias && !bias_is_16, args.bias, HEED_F32, views.bias, &zero);
    call->bias_16 = per_logit_buffer(p, bias_is_16, args.bias, HEED_F16, views.bias, &zero);
    call->bias_form = bias_form(p);
    call->mask_form = mask_form(p);
    call->sink = per_head_buffer(p, p.has_sink, args.sink, &no_sink);
    call->alibi_slopes = per_head_buffer(p, p.has_alibi, args.alibi_slopes, &zero);
    const int32_t pages = paged ? p.max_pages_per_seq : 1;
    const void *table = paged ? args.page_table : &no_page;
    call->page_table = {const_cast<void *>(table), HEED_I32, 2, {pages, p.batch}, {1, paged ? pages : 0}};
    call->out = kernel_buffer(args.out.data, p.dtype, views.out);
    call->lse = lse_buffer(plan, args, workspace);
}

KernelCall make_call(const heed_plan &plan, const heed_args &args, char *workspace, int32_t num_tasks) {
    const heed_problem &p = plan.problem;
    KernelCall call = {};
    fill_tensors(plan, args, workspace, &call);
    call.tasks = {workspace + plan.workspace.tasks, HEED_I32, 2, {num_task_fields, num_tasks}, {1, num_task_fields}};
    call.batch = p.batch;
    call.max_q_len = p.max_q_len;
    call.max_kv_len = p.max_kv_len;
    call.scale = p.scale;
    call.softcap = kernel_softcap(p.softcap);
    call.split_len = static_cast<int32_t>(plan.splits.split_len);
    call.num_splits = plan.splits.num_splits;
    call.page_size = p.kv_storage == HEED_KV_PAGED ? p.page_size : 0;
    call.alibi_symmetric = p.alibi_symmetric;
    call.dropout_seed = args.dropout_seed;
    call.dropout_offset = args.dropout_offset;
    call.dropout_threshold = dropout_threshold(p.dropout_p);
    call.dropout_scale = p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0;
    return call;
}

// Tasks of a decode row that stand side by side and read the same keys: the blocks of rows of one head of k and v.
int32_t tasks_together(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    if (plan.row->phase != Phase::decode || p.q_storage == HEED_Q_VARLEN) return 1;
    const int32_t rows = p.max_q_len * (p.num_heads / p.num_kv_heads);
    return (rows + plan.row->row_block - 1) / plan.row->row_block;
}

heed_status run_kernel(const heed_plan &plan, const heed_args &args, const Workload &work) {
    const heed_problem &p = plan.problem;
    char *const workspace = static_cast<char *>(args.workspace);
    const double flops = 2 * work.pairs * (p.head_dim + p.head_dim_v);
    KernelContext context;
    context.slices = workspace + plan.workspace.slices;
    context.slice_bytes = plan.workspace.slice_bytes;
    context.root_bytes = plan.workspace.root_bytes;
    context.num_threads = choose_threads(flops, args.num_threads == 0 ? p.max_threads : args.num_threads);
    context.pool = args.pool;
    context.tasks_together = tasks_together(plan);
    context.heap_scratch = plan.row->scratch_per_thread < 0;
    KernelCall call = make_call(plan, args, workspace, work.num_tasks);
    const int code = call_kernel(*plan.row, call, context);
    if (code == 0) return HEED_OK;
    const bool heap_exhausted = context.heap_scratch && code == kernel_out_of_memory;
    return fail(heap_exhausted ? HEED_OUT_OF_MEMORY : HEED_INTERNAL, "kernel %s failed with code %d: %s",
                plan.row->name, code, context.message[0] != '\0' ? context.message : "no message");
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_args_init(heed_args *args) {
    if (args == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_args_init: args is NULL");
    std::memset(args, 0, sizeof(*args));
    args->struct_size = sizeof(*args);
    return HEED_OK;
}

heed_status heed_execute(const heed_plan *plan, const heed_args *args) {
    if (const heed_status status = heed::check_call("heed_execute", plan, args)) return status;
    const heed_args call = *args;
    if (heed::is_empty_problem(plan->problem)) return HEED_OK;
    if (const heed_status status = heed::check_pointers(*plan, call)) return status;
    const bool no_kernel = heed::needs_no_kernel(plan->problem, plan->views);
    char *const workspace = static_cast<char *>(call.workspace) + plan->workspace.tasks;
    heed::Workload work;
    const heed_status status = heed::resolve_tasks(plan->problem, *plan->row, call,
                                                   no_kernel ? nullptr : reinterpret_cast<int32_t *>(workspace), &work);
    if (status) return status;
    if (no_kernel) {
        heed::fill_without_keys(*plan, call);
        return HEED_OK;
    }
    return work.num_tasks == 0 ? HEED_OK : heed::run_kernel(*plan, call, work);
}

}  // extern "C"
