#include "runtime/workspace.h"

#include <algorithm>

#include "runtime/backend.h"
#include "runtime/phase_choice.h"
#include "runtime/plan.h"
#include "runtime/scratch.h"
#include "runtime/tasks.h"

namespace heed {
namespace {

// Others read copies of heads, whose numbers were widened.
bool reads_in_place(const Kernel &kernel, const heed_problem &p) { return kernel.kv_dtype == p.kv_dtype; }

// Whether a layer's call of a kernel's dtypes and head dims could run it on the problem's device.
bool serves(const Kernel &kernel, const heed_problem &p) {
    const bool head_dims = (kernel.head_dim == 0 || kernel.head_dim == p.head_dim) &&
                           (kernel.head_dim_v == 0 || kernel.head_dim_v == p.head_dim_v);
    const bool runs = kernel.target.device() == p.device && backend_of(p.device).may_run(kernel.target);
    const bool takes_keys = reads_in_place(kernel, p) || (may_read_copies(kernel) && p.kv_dtype == p.dtype);
    return head_dims && kernel.dtype == p.dtype && takes_keys && kernel.score_mod[0] == '\0' && runs;
}

// Whether a prefill kernel serves all that the decode kernel does: then the latter gets few queries only.
bool is_for_few_queries(const Kernel &decode, const heed_problem &p) {
    for (int32_t i = 0; i < heed_kernel_table.count; i++) {
        const Kernel &kernel = heed_kernel_table.kernels[i];
        const bool covers = (decode.features & ~kernel.features & ~uint32_t{feature_gqa}) == 0 &&
                            (kernel.kv_storage == HEED_KV_PAGED || decode.kv_storage != HEED_KV_PAGED);
        if (kernel.phase == Phase::prefill && covers && reads_in_place(kernel, p) && serves(kernel, p)) return true;
    }
    return false;
}

}  // namespace

int32_t state_floats(int32_t head_dim_v) { return static_cast<int32_t>(round_up(head_dim_v, 8)) + 8; }

int32_t copied_pages(const heed_problem &p) { return static_cast<int32_t>(round_up(p.max_pages_per_seq, 2)); }

int64_t append_part(Size *total, Size bytes) {
    const int64_t offset = total->value;
    const Size padded = bytes + (scratch_alignment - 1);
    *total = *total + padded.value / scratch_alignment * scratch_alignment;
    total->fits &= padded.fits;
    return offset;
}

int64_t append_lse(const heed_problem &p, const ProblemViews &views, Size *total) {
    const Size rows = {p.want_lse ? 0 : views.q.extent[0] * views.q.extent[2]};
    return append_part(total, rows * views.q.extent[1] * int64_t{sizeof(float)});
}

bool lay_out_workspace(heed_plan *plan) {
    const heed_problem &p = plan->problem;
    WorkspaceLayout &layout = plan->workspace;
    layout = WorkspaceLayout{};
    if (needs_no_kernel(p, plan->views)) return true;
    const Size total = backend_of(p.device).lay_out(*plan, &layout);
    layout.total = total.value;
    return total.fits;
}

namespace {

// The most keys of a sequence in pages of whose heads prefill makes copies, up to the problem's; 0: it makes none.
int32_t longest_copied(heed_problem p, const ProblemViews &views) {
    int32_t longest = 0, most = p.max_kv_len;
    while (longest < most) {
        p.max_kv_len = p.page_size = most - (most - longest) / 2;
        if (backend_of(p.device).copies_of_heads(p, views) != CopiesOfHeads::no) {
            longest = p.max_kv_len;
        } else {
            most = p.max_kv_len - 1;
        }
    }
    return longest;
}

}  // namespace

int64_t most_workspace_bytes(const heed_problem &largest) {
    heed_plan plan = {};
    heed_problem problem = largest;
    backend_of(problem.device).widen(&problem);
    int64_t most = 0;
    for (int32_t i = 0; i < heed_kernel_table.count; i++) {
        const Kernel &kernel = heed_kernel_table.kernels[i];
        if (!serves(kernel, largest)) continue;
        const bool few_queries = kernel.phase == Phase::decode && is_for_few_queries(kernel, largest);
        const int32_t group_size = largest.num_heads / largest.num_kv_heads;
        const int32_t most_queries = most_decoded_queries(kernel, group_size);
        problem.max_q_len = few_queries ? std::min(largest.max_q_len, most_queries) : largest.max_q_len;
        if (few_queries && int64_t{problem.max_q_len} * group_size < least_rows(kernel)) continue;
        if (check_problem(&problem, &plan.problem, &plan.views) != HEED_OK) return -1;
        plan.kernel = &kernel;
        const bool splits = kernel.phase == Phase::decode;
        plan.splits = {splits ? most_splits(largest.max_kv_len, kernel.kv_block) : 1, 0};
        for (const bool own_masks : {false, true}) {  // of each head: sweeps take the most, copies of keys the least
            if (!reads_in_place(kernel, largest) || (own_masks && !sweeps(kernel))) continue;
            if (sweeps(kernel)) {
                plan.problem.has_mask = true;
                plan.views.mask.stride[1] = own_masks ? 1 : 0;
            }
            plan.task_shape = backend_of(problem.device).task_shape(plan);
            if (max_tasks(plan.problem, kernel, plan.task_shape) < 0 || !lay_out_workspace(&plan)) return -1;
            most = std::max(most, plan.workspace.total);
        }
        if (!may_read_copies(kernel)) continue;
        heed_problem &in_pages = plan.problem;
        in_pages.kv_storage = HEED_KV_PAGED;
        in_pages.max_pages_per_seq = 1;
        in_pages.max_kv_len = in_pages.page_size = longest_copied(in_pages, plan.views);
        if (in_pages.max_kv_len == 0) continue;
        plan.task_shape = backend_of(problem.device).task_shape(plan);
        if (!lay_out_workspace(&plan)) return -1;
        most = std::max(most, plan.workspace.total);
    }
    return most;
}

}  // namespace heed
