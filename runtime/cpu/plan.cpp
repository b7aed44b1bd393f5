// Plans on the CPU.
#include <algorithm>
#include <cinttypes>

#include "runtime/backends.h"
#include "runtime/cpu.h"
#include "runtime/cpu/key_copies.h"
#include "runtime/halide_bridge.h"
#include "runtime/kernel_call.h"
#include "runtime/kernel_registry.h"
#include "runtime/key_parts.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/plan.h"
#include "runtime/plan_limits.h"
#include "runtime/scratch.h"
#include "runtime/status.h"
#include "runtime/tasks.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

// Beyond its partial results a decode kernel allocates a few small arrays at its root.
constexpr int64_t decode_root_slack = 32768;

// The state (a vector of slots and an out row) of every split of every task's row_block rows, as the decode kernels
// allocate them.
Size decode_root_bytes(const heed_plan &plan) {
    const int64_t row_bytes = 4 * (round_up(plan.problem.head_dim_v, 16) + 32);
    const Size tasks = {max_tasks(plan.problem, *plan.kernel, plan.task_shape)};
    return tasks * plan.task_shape.blocks() * plan.kernel->row_block * plan.splits.num_splits * row_bytes +
           decode_root_slack;
}

// The packed values, and keys, of all heads, as a kernel that packs them allocates them, with a byte that tells of each
// block whether it has NaN or infinities: up to three arrays.
Size packed_root_bytes(const heed_plan &plan) {
    const Size blocks = {max_key_blocks(plan.problem, *plan.kernel)};
    const int64_t bytes = packed_block_bytes(*plan.kernel, plan.problem.head_dim, plan.problem.head_dim_v);
    return blocks * plan.problem.num_kv_heads * (bytes + 1) + 6 * scratch_alignment;
}

// What the sweep over mask and bias leaves for all tasks, two arrays, in addition to `root`.
Size with_swept_bytes(const heed_plan &plan, const Size &root) {
    if (!sweeps(*plan.kernel)) return root;
    const Size lines = {max_swept_tasks(plan.problem, plan.views, *plan.kernel)},
               swept = lines * (4 * num_sweep_results + plan.problem.max_kv_len / plan.kernel->kv_block + 1);
    Size total = root + (swept.value + 4 * scratch_alignment);
    total.fits &= swept.fits;
    return total;
}

// Whether a kernel can count the elements.
heed_status check_extents(const char *name, const View &view) {
    Size elements = {1};
    for (const int64_t extent : view.extent) elements = elements * extent;
    if (elements.fits) return HEED_OK;
    return fail(HEED_UNSUPPORTED,
                "%s of [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                "] counts more than 2^63-1 elements; no kernel serves that",
                name, view.extent[0], view.extent[1], view.extent[2], view.extent[3]);
}

}  // namespace

const char *CpuBackend::name() const { return "the CPU"; }

heed_status CpuBackend::find_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel) const {
    return find_op_kernel(op, dtype, kv_dtype, kernel);
}

heed_status CpuBackend::check_launches(std::initializer_list<Op>, heed_dtype) const { return HEED_OK; }

heed_status CpuBackend::check_serves_host_memory(const char *) const { return HEED_OK; }

heed_status CpuBackend::check_library() const { return HEED_OK; }

uint32_t CpuBackend::targets(const heed_problem &) const {
    uint32_t targets = 0;
    for (const Isa isa : cpu_isas) {
        if (cpu_supports(isa)) targets |= KernelTarget(isa).bit();
    }
    return targets;
}

bool CpuBackend::may_run(KernelTarget target) const { return cpu_supports(target.isa()); }

const char *CpuBackend::why_not_run(KernelTarget target) const {
    return cpu_supports(target.isa()) ? "" : target_reason(target);
}

int32_t CpuBackend::largest_head_dim() const { return max_head_dim; }

heed_status CpuBackend::find_kernels_around(heed_plan *) const { return HEED_OK; }

CopiesOfHeads CpuBackend::copies_of_heads(const heed_problem &problem, const ProblemViews &views) const {
    return heed::copies_of_heads(problem, views);
}

TaskShape CpuBackend::task_shape(const heed_plan &plan) const {
    TaskShape shape = heed::task_shape(plan.problem, plan.views, *plan.kernel, plan.splits.num_splits);
    shape.whole_heads = takes_whole_heads(plan.problem, plan.views, *plan.kernel);
    return shape;
}

heed_status CpuBackend::check_limits(const heed_plan &plan) const {
    const ProblemViews &views = plan.views;
    const KernelViews kv = kernel_views(plan.problem, views);
    heed_status status = check_stride_limits("q", views.q);
    if (!status) status = check_extents("k", kv.k);
    if (!status) status = check_stride_limits("out", views.out);
    if (!status) status = check_stride_limits("lse", views.lse);
    if (!status && plan.problem.has_mask) status = check_stride_limits("mask", views.mask);
    if (!status && plan.problem.has_bias) status = check_stride_limits("bias", views.bias);
    if (!status) status = check_lengths(plan);
    if (status) return status;
    if (max_tasks(plan.problem, *plan.kernel, plan.task_shape) < 0) {
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
    const bool decode = plan.kernel->phase == Phase::decode, packs = plan.kernel->packed_bytes > 0;
    const Size root = with_swept_bytes(plan, decode  ? decode_root_bytes(plan)
                                             : packs ? packed_root_bytes(plan)
                                                     : Size{});
    const Size key_blocks = {max_key_blocks(p, *plan.kernel)}, tasks = {max_tasks(p, *plan.kernel, plan.task_shape)},
               swept = {max_swept_tasks(p, plan.views, *plan.kernel)};
    const KeyParts parts(p, *plan.kernel);
    layout->slice_bytes =
        ScratchSlice::bytes_for(std::max(plan.kernel->scratch_per_thread, int64_t{0})) + parts.bytes_of_bundle();
    Size total;
    layout->tasks = append_part(&total, tasks * num_task_fields * int64_t{sizeof(int32_t)});
    layout->key_blocks = append_part(&total, key_blocks * num_key_block_fields * int64_t{sizeof(int32_t)});
    layout->swept_tasks = append_part(&total, swept * int64_t{sizeof(int32_t)});
    layout->bundles =
        append_part(&total, Size{parts.largest_bundle() > 1 ? tasks.value : 0} * int64_t{sizeof(TaskBundle)});
    layout->key_copies = append_part(&total, key_copies_bytes(plan));
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
    if (packs_values(*plan.kernel)) {
        text += std::string(packs_keys(*plan.kernel) ? "packed keys and values: " : "packed values: ") +
                std::to_string(plan.workspace.root_bytes) + " bytes of it\n";
    }
    if (const KeyParts parts(plan.problem, *plan.kernel); parts.largest_bundle() > 1) {
        text += "parts of " + std::to_string(parts.part_keys()) + " keys, which up to " +
                std::to_string(parts.largest_bundle()) + " blocks of rows share\n";
    }
    if (key_copies(plan.problem, plan.views, *plan.kernel) != KeyCopies::none) {
        text += std::string(packs_values(*plan.kernel) ? "copies of keys: " : "copies of keys and values: ") +
                std::to_string(key_copies_bytes(plan).value) + " bytes of it\n";
    }
    if (plan.kernel->scratch_per_thread >= 0) return text;
    return text + "scratch: from the heap, this kernel's need is not bounded\n";
}

}  // namespace heed
