#include "runtime/plan_limits.h"

#include <algorithm>
#include <cinttypes>

#include "runtime/backend.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {
namespace {

heed_status check_page_table(const heed_problem &p) {
    if (p.kv_storage != HEED_KV_PAGED || int64_t{p.batch} * p.max_pages_per_seq <= max_int32) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "page_table of [%d, %d] is beyond 2^31-1 elements; no kernel serves that", p.batch,
                p.max_pages_per_seq);
}

}  // namespace

heed_status check_stride_limits(const char *name, const View &view) {
    for (int i = 0; i < 4; i++) {
        if (view.stride[i] > max_int32) {
            return fail(HEED_UNSUPPORTED, "%s_layout.stride[%d] is %" PRId64 "; no kernel serves strides past 2^31-1",
                        name, i, view.stride[i]);
        }
    }
    return HEED_OK;
}

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

heed_status check_limits(const heed_plan &plan) {
    const ProblemViews &views = plan.views;
    if (is_empty_problem(plan.problem)) return HEED_OK;
    if (const heed_status status = check_page_table(plan.problem)) return status;
    if (needs_no_kernel(plan.problem, views)) return HEED_OK;
    return backend_of(plan.problem.device).check_limits(plan);
}

}  // namespace heed
