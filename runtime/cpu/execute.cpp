// heed_execute on the CPU: all checks of values, the private copy of the metadata, then one kernel call.
#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/backends.h"
#include "runtime/cpu/key_copies.h"
#include "runtime/cpu/task_start.h"
#include "runtime/halide_bridge.h"
#include "runtime/heuristics.h"
#include "runtime/key_parts.h"
#include "runtime/make_call.h"
#include "runtime/plan.h"
#include "runtime/status.h"
#include "runtime/tasks.h"
#include "runtime/workspace_use.h"

namespace heed {
namespace {

constexpr uint8_t may_attend = 1;
constexpr float zero = 0;
constexpr int32_t no_page = 0;
#define HEED_DECLARE(name, used, otherwise) constexpr float no_##name = otherwise;
HEED_HEAD_ARRAYS(HEED_DECLARE)
#undef HEED_DECLARE
#define HEED_ADDRESS(name, ...) , &no_##name
constexpr Unused unused = {&may_attend, &zero, &no_page HEED_HEAD_ARRAYS(HEED_ADDRESS)};
#undef HEED_ADDRESS

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

// Tasks of a decode kernel that are side by side and read the same keys: the blocks of rows of one head of k and v.
int32_t tasks_together(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    if (plan.kernel->phase != Phase::decode || p.q_storage == HEED_Q_VARLEN) return 1;
    const int32_t rows = p.max_q_len * (p.num_heads / p.num_kv_heads);
    const int32_t task_rows = plan.kernel->row_block * plan.task_shape.row_blocks;
    return (rows + task_rows - 1) / task_rows;
}

heed_status run_kernel(const heed_plan &plan, const heed_args &args, const Workload &work) {
    const heed_problem &p = plan.problem;
    char *const workspace = static_cast<char *>(args.workspace);
    const double flops = 2 * work.pairs * (p.head_dim + p.head_dim_v);
    const double bytes = work.keys * (p.head_dim + p.head_dim_v) * static_cast<double>(dtype_bytes(p.kv_dtype));
    KernelContext context;
    context.slices = workspace + plan.workspace.slices;
    context.slice_bytes = plan.workspace.slice_bytes;
    context.root_bytes = plan.workspace.root_bytes;
    context.num_threads = choose_threads(flops, bytes, args.num_threads == 0 ? p.max_threads : args.num_threads);
    context.pool = args.pool;
    context.tasks_together = tasks_together(plan);
    context.heap_scratch = plan.kernel->scratch_per_thread < 0;
    KernelCall call = make_call(plan, args, unused);
    const auto table = [&](int64_t offset, std::initializer_list<int32_t> extents) {
        return packed_buffer(workspace + offset, HEED_I32, extents);
    };
    const int32_t key_blocks = plan.kernel->packed_bytes > 0 ? work.num_key_blocks : 1;
    call.tasks = table(plan.workspace.tasks, {num_task_fields, work.num_tasks});
    call.key_blocks = table(plan.workspace.key_blocks, {num_key_block_fields, key_blocks});
    call.swept_tasks = table(plan.workspace.swept_tasks, {std::max(work.num_swept, 1)});
    char *const copied = workspace + plan.workspace.key_copies;
    const KeyCopies copies = key_copies(p, plan.views, *plan.kernel);
    if (copies == KeyCopies::of_all) {
        heed_execution execution = {};
        execution.num_threads = context.num_threads;
        execution.pool = args.pool;
        const heed_status status = copy_all_keys(plan, execution, copied, &call);
        if (status) return status;
    }
    const KeyParts parts(p, *plan.kernel);
    const TaskStart start(plan, parts, copies == KeyCopies::of_heads ? copied : nullptr, &call);
    if (plan.kernel->phase == Phase::prefill) {
        TaskLoop &loop = context.task_loop;
        loop.loops_before = plan.kernel->loops_before;
        loop.num_tasks = work.num_tasks;
        loop.before = [](const void *state, int32_t task, const TaskBundle &bundle, int32_t part, int32_t slice) {
            return static_cast<const TaskStart *>(state)->run(task, bundle, part, slice);
        };
        loop.state = &start;
        auto *const bundles = reinterpret_cast<TaskBundle *>(workspace + plan.workspace.bundles);
        parts.bundle(static_cast<const int32_t *>(call.tasks.data), context.num_threads, bundles, &loop);
    }
    const int32_t shared = context.task_loop.bundles == nullptr ? work.num_tasks : context.task_loop.num_bundles;
    context.in_shares = plan.task_shape.whole_heads || takes_shares(plan.kernel->phase, shared, context.num_threads);
    const int code = call_kernel(*plan.kernel, call, context);
    if (code == 0) return HEED_OK;
    const bool heap_exhausted = context.heap_scratch && code == kernel_out_of_memory;
    return fail(heap_exhausted ? HEED_OUT_OF_MEMORY : HEED_INTERNAL, "kernel %s failed with code %d: %s",
                plan.kernel->name, code, context.message[0] != '\0' ? context.message : "no message");
}

}  // namespace

heed_status CpuBackend::execute(const heed_plan &plan, const heed_args &args) const {
    const bool no_kernel = needs_no_kernel(plan.problem, plan.views);
    const auto table = [&](int64_t offset) {
        return no_kernel ? nullptr : reinterpret_cast<int32_t *>(static_cast<char *>(args.workspace) + offset);
    };
#ifndef NDEBUG
    const WorkspaceUse use(args.workspace);
    if (!no_kernel && use.shared()) {
        return fail(HEED_INVALID_ARGUMENT, "workspace %p is in use by another running call; each needs its own",
                    args.workspace);
    }
#endif
    Workload work;
    const TaskTables tables = {table(plan.workspace.tasks), table(plan.workspace.key_blocks),
                               table(plan.workspace.swept_tasks)};
    const heed_status status =
        resolve_tasks(plan.problem, plan.views, *plan.kernel, args, tables, &work, plan.task_shape);
    if (status) return status;
    if (no_kernel) {
        fill_without_keys(plan, args);
        return HEED_OK;
    }
    return run_kernel(plan, args, work);
}

}  // namespace heed
