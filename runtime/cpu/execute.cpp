// heed_execute on the CPU: all checks of values, the private copy of the metadata, then one kernel call.
#include <cstring>
#include <limits>

#include "cpu/cpu_backend.h"
#include "halide_bridge.h"
#include "heuristics.h"
#include "make_call.h"
#include "plan.h"
#include "status.h"
#include "tasks.h"
#include "workspace_use.h"

namespace heed {
namespace {

constexpr uint8_t may_attend = 1;
constexpr float zero = 0, no_sink = -std::numeric_limits<float>::infinity();
constexpr int32_t no_page = 0;
constexpr Unused unused = {&may_attend, &zero, &no_sink, &no_page};

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
    KernelCall call = make_call(plan, args, unused);
    call.tasks = {
        workspace + plan.workspace.tasks, HEED_I32, 2, {num_task_fields, work.num_tasks}, {1, num_task_fields}};
    const int code = call_kernel(*plan.row, call, context);
    if (code == 0) return HEED_OK;
    const bool heap_exhausted = context.heap_scratch && code == kernel_out_of_memory;
    return fail(heap_exhausted ? HEED_OUT_OF_MEMORY : HEED_INTERNAL, "kernel %s failed with code %d: %s",
                plan.row->name, code, context.message[0] != '\0' ? context.message : "no message");
}

}  // namespace

heed_status CpuBackend::execute(const heed_plan &plan, const heed_args &args) const {
    const bool no_kernel = needs_no_kernel(plan.problem, plan.views);
    char *const tasks = static_cast<char *>(args.workspace) + plan.workspace.tasks;
#ifndef NDEBUG
    const WorkspaceUse use(args.workspace);
    if (!no_kernel && use.shared()) {
        return fail(HEED_INVALID_ARGUMENT, "workspace %p is in use by another running call; each needs its own",
                    args.workspace);
    }
#endif
    Workload work;
    const heed_status status = resolve_tasks(plan.problem, plan.views, *plan.row, args,
                                             no_kernel ? nullptr : reinterpret_cast<int32_t *>(tasks), &work);
    if (status) return status;
    if (no_kernel) {
        fill_without_keys(plan, args);
        return HEED_OK;
    }
    return run_kernel(plan, args, work);
}

}  // namespace heed
