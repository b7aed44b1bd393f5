// Plans on the CPU.
#include <algorithm>
#include <cinttypes>

#include "cpu.h"
#include "cpu/cpu_backend.h"
#include "kernel_call.h"
#include "ops/op_rows.h"
#include "plan.h"
#include "plan_limits.h"
#include "scratch.h"
#include "status.h"
#include "tasks.h"
#include "workspace.h"

namespace heed {
namespace {

// Beyond its partial results a decode row allocates a few small arrays at its root.
constexpr int64_t decode_root_slack = 32768;

// The state (a vector of slots and an out row) of every split of every task's row_block rows, as the decode rows
// allocate them.
Size decode_root_bytes(const heed_plan &plan) {
    const int64_t row_bytes = 4 * (round_up(plan.problem.head_dim_v, 16) + 32);
    const Size tasks = {max_tasks(plan.problem, *plan.row)};
    return tasks * plan.row->row_block * plan.splits.num_splits * row_bytes + decode_root_slack;
}

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

}  // namespace

const char *CpuBackend::name() const { return "the CPU"; }

heed_status CpuBackend::find_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel) const {
    return find_op_row(op, dtype, kv_dtype, kernel);
}

heed_status CpuBackend::check_launches(std::initializer_list<Op>, heed_dtype) const { return HEED_OK; }

heed_status CpuBackend::check_serves_host_memory(const char *) const { return HEED_OK; }

heed_status CpuBackend::check_library() const { return HEED_OK; }

uint32_t CpuBackend::isas(const heed_problem &) const {
    uint32_t isas = 0;
    for (const Isa isa : cpu_isas) {
        if (cpu_supports(isa)) isas |= 1u << static_cast<int>(isa);
    }
    return isas;
}

bool CpuBackend::may_run(Isa isa) const { return cpu_supports(isa); }

const char *CpuBackend::why_not_run(Isa isa) const { return cpu_supports(isa) ? "" : isa_reason(isa); }

int32_t CpuBackend::largest_head_dim() const { return max_head_dim; }

heed_status CpuBackend::find_kernels_around(heed_plan *) const { return HEED_OK; }

heed_status CpuBackend::check_limits(const heed_plan &plan) const {
    const ProblemViews &views = plan.views;
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

bool CpuBackend::needs_no_kernel(const heed_problem &problem, const ProblemViews &views) const {
    const bool no_pages = problem.kv_storage == HEED_KV_PAGED && problem.max_pages_per_seq == 0;
    return is_empty_problem(problem) || problem.max_kv_len == 0 || no_pages || views.k.span == 0 || views.q.span == 0;
}

Size CpuBackend::lay_out(const heed_plan &plan, WorkspaceLayout *layout) const {
    const heed_problem &p = plan.problem;
    const Size root = plan.row->phase == Phase::decode ? decode_root_bytes(plan) : Size{},
               tasks = {max_tasks(p, *plan.row)};
    layout->slice_bytes = ScratchSlice::bytes_for(std::max(plan.row->scratch_per_thread, int64_t{0}));
    Size total;
    layout->tasks = append_part(&total, tasks * num_task_fields * int64_t{sizeof(int32_t)});
    layout->lse = append_lse(p, plan.views, &total);
    layout->slices = append_part(&total, root);
    layout->root_bytes = total.value - layout->slices;
    append_part(&total, Size{p.max_threads} * layout->slice_bytes);
    return total;
}

void CpuBackend::widen(heed_problem *) const {}

std::string CpuBackend::describe(const heed_plan &plan) const {
    std::string text = "for " + std::to_string(plan.problem.max_threads) + " threads (" +
                       std::to_string(plan.workspace.slice_bytes) + " each)\n";
    if (plan.row->scratch_per_thread >= 0) return text;
    return text + "scratch: from the heap, this row's need is not bounded\n";
}

}  // namespace heed
