#include "plan_limits.h"

#include <algorithm>
#include <cinttypes>
#include <limits>

#include "kernel_call.h"
#include "status.h"
#include "tasks.h"
#include "view.h"
#include "workspace.h"

namespace heed {
namespace {

// Kernels index with 32 bits: Halide asks that extents, their products and extent * stride stay below 2^31.
heed_status check_kernel_limits(const char *name, const View &view) {
    Size elements = {1};
    for (int i = 3; i >= 0; i--) {
        elements = elements * view.extent[i];
        const bool counts = elements.at_most(max_int32);
        const bool reaches = (Size{view.extent[i]} * view.stride[i]).at_most(max_int32);
        if (!counts || !reaches || view.span > max_int32) {
            return fail(HEED_UNSUPPORTED,
                        "%s of [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] %s 2^31-1 elements; no row serves "
                        "that",
                        name, view.extent[0], view.extent[1], view.extent[2], view.extent[3],
                        counts ? "reaches past" : "counts more than");
        }
    }
    return HEED_OK;
}

// Rows with a mask or bias index these two with 64 bits; only single strides stay 32 bits wide.
heed_status check_stride_limits(const char *name, const View &view) {
    for (int i = 0; i < 4; i++) {
        if (view.stride[i] > max_int32) {
            return fail(HEED_UNSUPPORTED, "%s_layout.stride[%d] is %" PRId64 "; no row serves strides past 2^31-1",
                        name, i, view.stride[i]);
        }
    }
    return HEED_OK;
}

heed_status check_page_table(const heed_problem &p) {
    if (p.kv_storage != HEED_KV_PAGED || int64_t{p.batch} * p.max_pages_per_seq <= max_int32) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "page_table of [%d, %d] is beyond 2^31-1 elements; no row serves that", p.batch,
                p.max_pages_per_seq);
}

// Kernels add a query's index to a number of keys that its sequence has: pages hold that many at most.
heed_status check_lengths(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    int64_t most_keys = p.max_kv_len;
    if (p.kv_storage == HEED_KV_PAGED) most_keys = std::min(most_keys, int64_t{p.max_pages_per_seq} * p.page_size);
    if (p.max_q_len + most_keys > max_int32) {
        return fail(HEED_UNSUPPORTED, "max_q_len is %d for up to %" PRId64 " keys; together they must stay below 2^31",
                    p.max_q_len, most_keys);
    }
    if (plan.splits.num_splits * plan.splits.split_len > max_int32) {
        return fail(HEED_UNSUPPORTED, "max_kv_len is %d; in %d splits of whole blocks of keys it passes 2^31-1",
                    p.max_kv_len, plan.splits.num_splits);
    }
    return HEED_OK;
}

// States of a token, of the tokens of a sequence, and the rows that are merged: 32 bits each.
heed_status check_states(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    const View &out = plan.views.out;
    const int64_t floats = int64_t{p.num_heads} * state_floats(p.head_dim_v);
    const Size of_sequence = Size{floats} * plan.splits.num_splits * p.max_q_len;
    const Size rows = Size{out.extent[0] * out.extent[1]} * p.num_heads;
    if (of_sequence.at_most(max_int32) && rows.at_most(max_int32)) return HEED_OK;
    return fail(
        HEED_UNSUPPORTED,
        "num_heads is %d, max_q_len is %d, head_dim_v is %d: their states in %d splits are beyond 2^31-1 floats",
        p.num_heads, p.max_q_len, p.head_dim_v, plan.splits.num_splits);
}

// Rows on CUDA index with 64 bits: single extents and strides are 32 bits wide, and the number of blocks.
heed_status check_cuda_limits(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    heed_status status = check_stride_limits("q", views.q);
    if (!status) status = check_stride_limits("k", views.k);
    if (!status) status = check_stride_limits("v", views.v);
    if (!status) status = check_stride_limits("out", views.out);
    if (!status) status = check_stride_limits("lse", views.lse);
    if (!status && p.has_mask) status = check_stride_limits("mask", views.mask);
    if (!status && p.has_bias) status = check_stride_limits("bias", views.bias);
    if (!status) status = check_lengths(plan);
    if (status) return status;
    if (!p.want_lse && p.q_storage == HEED_Q_DENSE && int64_t{p.num_heads} * p.max_q_len > max_int32) {
        return fail(HEED_UNSUPPORTED,
                    "num_heads is %d and max_q_len is %d; without lse their product must stay below 2^31", p.num_heads,
                    p.max_q_len);
    }
    const bool decode = plan.row->phase == Phase::decode;
    const int64_t group = decode ? p.num_heads / p.num_kv_heads : 1, heads = p.num_heads / group;
    const int64_t rows = int64_t{p.max_q_len} * group;
    const int64_t q_blocks = (rows + plan.row->row_block - 1) / plan.row->row_block;
    const Size blocks = Size{q_blocks} * (heads * plan.splits.num_splits) * p.batch;
    if (!blocks.at_most(max_int32) || rows > max_int32 - plan.row->row_block ||
        int64_t{p.batch} * num_sequence_fields > max_int32) {
        return fail(HEED_UNSUPPORTED,
                    "batch is %d, num_heads is %d, max_q_len is %d: their blocks of %d query rows in %d splits, or "
                    "fields of sequences, are 2^31 or more",
                    p.batch, p.num_heads, p.max_q_len, plan.row->row_block, plan.splits.num_splits);
    }
    return plan.splits.num_splits > 1 ? check_states(plan) : HEED_OK;
}

}  // namespace

heed_status check_limits(const heed_plan &plan) {
    const ProblemViews &views = plan.views;
    if (is_empty_problem(plan.problem)) return HEED_OK;
    if (const heed_status status = check_page_table(plan.problem)) return status;
    if (needs_no_kernel(plan.problem, views)) return HEED_OK;
    if (plan.problem.device == HEED_CUDA) return check_cuda_limits(plan);
    const KernelViews kv = kernel_views(plan.problem, views);
    heed_status status = check_kernel_limits("q", views.q);
    if (!status) status = check_kernel_limits("k", kv.k);
    if (!status) status = check_kernel_limits("v", kv.v);
    if (!status) status = check_kernel_limits("out", views.out);
    if (!status) status = check_kernel_limits("lse", views.lse);
    if (!status && plan.problem.kv_dtype == HEED_I8) status = check_kernel_limits("k_scale", views.kv_scale);
    if (!status && plan.problem.has_mask) status = check_stride_limits("mask", views.mask);
    if (!status && plan.problem.has_bias) status = check_stride_limits("bias", views.bias);
    if (!status) status = check_lengths(plan);
    if (status) return status;
    if (max_tasks(plan.problem, *plan.row) < 0) {
        return fail(HEED_UNSUPPORTED,
                    "batch is %d, num_heads is %d, max_q_len is %d: their table of blocks of query rows is beyond "
                    "2^31-1 elements",
                    plan.problem.batch, plan.problem.num_heads, plan.problem.max_q_len);
    }
    return HEED_OK;
}

}  // namespace heed
