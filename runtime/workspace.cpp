#include "workspace.h"

#include <algorithm>

#include "cpu.h"
#include "plan.h"
#include "scratch.h"
#include "sequences.h"
#include "tasks.h"

namespace heed {
namespace {

// Beyond its partial results a decode row allocates a few small arrays at its root.
constexpr int64_t decode_root_slack = 32768;

// Appends a part of count * size bytes to the workspace; false on overflow.
bool append(int64_t *total, int64_t count, int64_t size, int64_t *offset) {
    int64_t bytes = 0;
    *offset = *total;
    return checked_mul(count, size, &bytes) && checked_add(bytes, scratch_alignment - 1, &bytes) &&
           checked_add(*total, bytes / scratch_alignment * scratch_alignment, total);
}

bool append_lse(const heed_problem &p, const ProblemViews &views, WorkspaceLayout *layout) {
    int64_t rows = p.want_lse ? 0 : views.q.extent[0] * views.q.extent[2];
    return checked_mul(rows, views.q.extent[1], &rows) && append(&layout->total, rows, sizeof(float), &layout->lse);
}

bool lay_out_device(const heed_plan &plan, WorkspaceLayout *layout) {
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    const int64_t sequences = is_uniform(p) ? 0 : p.batch;
    const int64_t tables = copies_pages(p) ? p.batch : 0;
    int64_t states = plan.splits.num_splits > 1 ? views.out.extent[0] * views.out.extent[1] : 0;
    return append(&layout->total, sequences, num_sequence_fields * int64_t{sizeof(int32_t)}, &layout->tasks) &&
           append(&layout->total, tables, copied_pages(p) * int64_t{sizeof(int32_t)}, &layout->pages) &&
           append_lse(p, views, layout) && checked_mul(states, p.num_heads, &states) &&
           checked_mul(states, plan.splits.num_splits, &states) &&
           append(&layout->total, states, state_floats(p.head_dim_v) * int64_t{sizeof(float)}, &layout->states);
}

// The state (a vector of slots and an out row) of every split of every task's row_block rows, as the decode rows
// allocate them.
bool decode_root_bytes(const heed_plan &plan, int64_t *bytes) {
    const int64_t row_bytes = 4 * (round_up(plan.problem.head_dim_v, 16) + 32);
    int64_t rows = 0;
    return checked_mul(max_tasks(plan.problem, *plan.row), plan.row->row_block, &rows) &&
           checked_mul(rows, plan.splits.num_splits, &rows) && checked_mul(rows, row_bytes, bytes) &&
           checked_add(*bytes, decode_root_slack, bytes);
}

// Whether some call of a row's dtypes and head dims could run it on the problem's device.
bool serves(const Kernel &row, const heed_problem &p) {
    const bool head_dims =
        (row.head_dim == 0 || row.head_dim == p.head_dim) && (row.head_dim_v == 0 || row.head_dim_v == p.head_dim_v);
    const bool runs = p.device == HEED_CUDA ? is_cuda(row.isa) : cpu_supports(row.isa);
    return head_dims && row.dtype == p.dtype && row.kv_dtype == p.kv_dtype && runs;
}

// Whether a prefill row serves all that the decode row does: then the latter gets few queries only.
bool is_for_few_rows(const Kernel &decode, const heed_problem &p) {
    for (int32_t i = 0; i < heed_kernel_table.count; i++) {
        const Kernel &row = heed_kernel_table.rows[i];
        const bool covers = (decode.features & ~row.features & ~uint32_t{feature_gqa}) == 0 &&
                            (row.kv_storage == HEED_KV_PAGED || decode.kv_storage != HEED_KV_PAGED);
        if (row.phase == Phase::prefill && covers && serves(row, p)) return true;
    }
    return false;
}

}  // namespace

int32_t state_floats(int32_t head_dim_v) { return static_cast<int32_t>(round_up(head_dim_v, 8)) + 8; }

int32_t copied_pages(const heed_problem &p) { return static_cast<int32_t>(round_up(p.max_pages_per_seq, 2)); }

bool lay_out_workspace(heed_plan *plan) {
    const heed_problem &p = plan->problem;
    WorkspaceLayout &layout = plan->workspace;
    layout = WorkspaceLayout{};
    if (needs_no_kernel(p, plan->views)) return true;
    if (p.device == HEED_CUDA) return lay_out_device(*plan, &layout);
    int64_t payload = plan->row->scratch_per_thread, root = 0, ignored = 0;
    if (payload < 0) payload = 0;
    if (plan->row->phase == Phase::decode && !decode_root_bytes(*plan, &root)) return false;
    layout.slice_bytes = ScratchSlice::bytes_for(payload);
    layout.root_bytes = round_up(root, scratch_alignment);
    return append(&layout.total, max_tasks(p, *plan->row), num_task_fields * int64_t{sizeof(int32_t)}, &layout.tasks) &&
           append_lse(p, plan->views, &layout) && append(&layout.total, 1, layout.root_bytes, &layout.slices) &&
           append(&layout.total, p.max_threads, layout.slice_bytes, &ignored);
}

int64_t most_workspace_bytes(const heed_problem &largest) {
    heed_plan plan = {};
    heed_problem problem = largest;
    if (problem.device == HEED_CUDA) {  // a table of sequences, and the longest of pages
        problem.kv_storage = HEED_KV_PAGED;
        problem.has_kv_lens = true;
        problem.num_pages = problem.page_size = 1;
        problem.max_pages_per_seq = problem.max_kv_len;
    }
    int64_t most = 0;
    for (int32_t i = 0; i < heed_kernel_table.count; i++) {
        const Kernel &row = heed_kernel_table.rows[i];
        if (!serves(row, largest)) continue;
        const bool few_rows = row.phase == Phase::decode && is_for_few_rows(row, largest);
        problem.max_q_len = few_rows ? std::min(largest.max_q_len, decode_max_q_len) : largest.max_q_len;
        if (check_problem(&problem, &plan.problem, &plan.views) != HEED_OK) return -1;
        plan.row = &row;
        const bool splits = row.phase == Phase::decode;
        plan.splits = {splits ? most_splits(largest.max_kv_len, row.kv_block) : 1, 0};
        if (max_tasks(plan.problem, row) < 0 || !lay_out_workspace(&plan)) return -1;
        most = std::max(most, plan.workspace.total);
    }
    return most;
}

}  // namespace heed
