#include "runtime/make_call.h"

#include <cstring>

#include "runtime/kernel_call.h"

namespace heed {
namespace {

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
    for (int i = 0; i < 3; i++) buffer.stride[i] = narrow_stride(view.stride[3 - i]);
    return buffer;
}

// lse in the shape of out, with stride 0 along head_dim_v. When the caller wants none it lands in the workspace,
// packed.
KernelBuffer lse_buffer(const heed_plan &plan, const heed_args &args, char *workspace) {
    const View &view = plan.views.lse,
               &out = plan.views.out;  // [batch, num_heads, tokens, 1]; [batch, tokens, heads, d]
    KernelBuffer buffer = kernel_buffer(workspace + plan.workspace.lse, HEED_F32, out);
    const int64_t packed[3] = {out.extent[2] * out.extent[1], out.extent[1], 1};
    if (plan.problem.want_lse) buffer.data = args.lse.data;
    const int64_t *const stride = plan.problem.want_lse ? view.stride : packed;
    const int64_t innermost_first[4] = {0, stride[1], stride[2], stride[0]};
    for (int i = 0; i < 4; i++) buffer.stride[i] = static_cast<int32_t>(innermost_first[i]);
    return buffer;
}

void fill_tensors(const heed_plan &plan, const heed_args &args, const Unused &unused, KernelCall *call) {
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    const bool bias_is_16 = bias_form(p) == bias_of_dtype;
    const bool paged = p.kv_storage == HEED_KV_PAGED;
    call->q = kernel_buffer(args.q.data, p.dtype, views.q);
    const KernelViews kv = kernel_views(p, views);
    set_keys({args.k.data, kv.k}, {args.v.data, kv.v}, p.kv_dtype, call);
    call->k_scale = scale_buffer(p, args.k_scale, views.kv_scale, kv.k, unused.zero);
    call->v_scale = scale_buffer(p, args.v_scale, views.kv_scale, kv.k, unused.zero);
    call->k_scale_page_stride = call->v_scale_page_stride = static_cast<uint64_t>(views.kv_scale.stride[1]);
    call->mask = per_logit_buffer(p, p.has_mask, args.mask, HEED_U8, views.mask, unused.may_attend);
    call->bias = per_logit_buffer(p, p.has_bias && !bias_is_16, args.bias, HEED_F32, views.bias, unused.zero);
    call->bias_16 = per_logit_buffer(p, bias_is_16, args.bias, HEED_F16, views.bias, unused.zero);
#define HEED_FILL(name, used, ...) call->name = per_head_buffer(p, p.used, args.name, unused.name);
    HEED_HEAD_ARRAYS(HEED_FILL)
#undef HEED_FILL
    const int32_t pages = paged ? p.max_pages_per_seq : 1;
    const void *table = paged ? args.page_table : unused.no_page;
    call->page_table = {const_cast<void *>(table), HEED_I32, 2, {pages, p.batch}, {1, paged ? pages : 0}};
    call->out = kernel_buffer(args.out.data, p.dtype, views.out);
    call->lse = lse_buffer(plan, args, static_cast<char *>(args.workspace));
}

// Words of 32 bits: what they are the kernel knows.
void fill_score_buffers(const char *types, const heed_args &args, KernelCall *call) {
    call->num_score_buffers = static_cast<int32_t>(std::strlen(types));
    for (int32_t i = 0; i < call->num_score_buffers; i++) {
        const heed_tensor &tensor = args.score_buffers[i];
        call->score_buffers[i] = packed_buffer(tensor.data, HEED_I32, {static_cast<int32_t>(tensor.size)});
    }
}

}  // namespace

KernelCall make_call(const heed_plan &plan, const heed_args &args, const Unused &unused) {
    const heed_problem &p = plan.problem;
    KernelCall call = {};
    fill_tensors(plan, args, unused, &call);
    fill_score_buffers(plan.kernel->score_buffers, args, &call);
    call.batch = p.batch;
    call.max_q_len = p.max_q_len;
    call.max_kv_len = p.max_kv_len;
    set_values(LogitValues(p), &call);
    set_values(DropoutValues(p, args), &call);
    call.split_len = static_cast<int32_t>(plan.splits.split_len);
    call.num_splits = plan.splits.num_splits;
    call.blocks_per_task = plan.task_shape.blocks();
    call.wants_lse = p.want_lse ? 1 : 0;
    call.page_size = p.kv_storage == HEED_KV_PAGED ? p.page_size : 0;
    return call;
}

}  // namespace heed
