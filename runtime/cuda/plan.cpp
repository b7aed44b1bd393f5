// Plans on CUDA.
#include <algorithm>
#include <cinttypes>

#include "runtime/backends.h"
#include "runtime/cuda/contexts.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/op_kernels.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/plan.h"
#include "runtime/plan_limits.h"
#include "runtime/sequences.h"
#include "runtime/status.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

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

}  // namespace

const char *CudaBackend::name() const { return "CUDA"; }

heed_status CudaBackend::find_kernel(Op op, heed_dtype dtype, heed_dtype kv_dtype, const OpKernel **kernel) const {
    return find_cuda_op_kernel(op, dtype, kv_dtype, kernel);
}

heed_status CudaBackend::check_launches(std::initializer_list<Op> ops, heed_dtype dtype) const {
    heed_status status = HEED_OK;
    for (const Op op : ops) {
        const OpKernel *kernel = nullptr;
        if (!status) status = find_cuda_op_kernel(op, dtype, dtype, &kernel);
    }
    return status;
}

heed_status CudaBackend::check_serves_host_memory(const char *function) const {
    return fail(HEED_NO_DEVICE, "execution.device is HEED_CUDA; %s has no CUDA kernels in Heed %s", function,
                heed_version());
}

heed_status CudaBackend::check_library() const {
    const Kernel *const kernels = heed_kernel_table.kernels;
    const auto is_of_cuda = [](const Kernel &kernel) { return kernel.target.device() == HEED_CUDA; };
    if (std::any_of(kernels, kernels + heed_kernel_table.count, is_of_cuda)) return HEED_OK;
    return fail(HEED_NO_DEVICE, "device is HEED_CUDA; this program's kernel library has no CUDA kernels");
}

// A chip that neither the problem nor a current context names is 8.0 or newer.
uint32_t CudaBackend::targets(const heed_problem &problem) const {
    int32_t capability = problem.cuda_capability;
    if (capability == 0) capability = cuda::current_capability();
    if (capability == 0) capability = required_capability(Capability::sm80);
    uint32_t targets = 0;
    for (const Capability own : {Capability::sm75, Capability::sm80, Capability::sm90}) {
        if (serves_chip(own, capability)) targets |= KernelTarget(own).bit();
    }
    return targets;
}

bool CudaBackend::may_run(KernelTarget) const { return true; }

const char *CudaBackend::why_not_run(KernelTarget target) const {
    const char *reason = nullptr;
    if (cuda::find_driver(&reason) == nullptr) return reason;
    return serves_chip(target.capability(), cuda::best_capability()) ? "" : target_reason(target);
}

int32_t CudaBackend::largest_head_dim() const { return max_cuda_head_dim; }

// What brings the metadata into its form, and what merges its splits.
heed_status CudaBackend::find_kernels_around(heed_plan *plan) const {
    const heed_problem &p = plan->problem;
    if (!is_uniform(p)) {
        const Op op = p.metadata_on_device ? Op::sequences : Op::write_metadata;
        if (const heed_status status = find_cuda_op_kernel(op, HEED_I32, HEED_I32, &plan->sequence_kernel))
            return status;
    }
    return plan->splits.num_splits == 1 ? HEED_OK
                                        : find_cuda_op_kernel(Op::merge_splits, p.dtype, p.dtype, &plan->merge_kernel);
}

// Kernels on CUDA index with 64 bits: single extents and strides are 32 bits wide, and the number of blocks.
heed_status CudaBackend::check_limits(const heed_plan &plan) const {
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
    if (p.has_temperature || p.temperature_growth != 0) {
        return fail(HEED_UNSUPPORTED,
                    "has_temperature is %d, temperature_growth is %g; kernels on CUDA have no temperature",
                    p.has_temperature, static_cast<double>(p.temperature_growth));
    }
    if (!p.want_lse && p.q_storage == HEED_Q_DENSE && int64_t{p.num_heads} * p.max_q_len > max_int32) {
        return fail(HEED_UNSUPPORTED,
                    "num_heads is %d and max_q_len is %d; without lse their product must stay below 2^31", p.num_heads,
                    p.max_q_len);
    }
    const bool decode = plan.kernel->phase == Phase::decode;
    const int64_t group = decode ? p.num_heads / p.num_kv_heads : 1, heads = p.num_heads / group;
    const int64_t rows = int64_t{p.max_q_len} * group;
    const int64_t q_blocks = (rows + plan.kernel->row_block - 1) / plan.kernel->row_block;
    const Size blocks = Size{q_blocks} * (heads * plan.splits.num_splits) * p.batch;
    if (!blocks.at_most(max_int32) || rows > max_int32 - plan.kernel->row_block ||
        int64_t{p.batch} * num_sequence_fields > max_int32) {
        return fail(HEED_UNSUPPORTED,
                    "batch is %d, num_heads is %d, max_q_len is %d: their blocks of %d query rows in %d splits, or "
                    "fields of sequences, are 2^31 or more",
                    p.batch, p.num_heads, p.max_q_len, plan.kernel->row_block, plan.splits.num_splits);
    }
    return plan.splits.num_splits > 1 ? check_states(plan) : HEED_OK;
}

bool CudaBackend::needs_no_kernel(const heed_problem &problem, const ProblemViews &views) const {
    return is_empty_problem(problem) || views.q.span == 0;
}

CopiesOfHeads CudaBackend::copies_of_heads(const heed_problem &, const ProblemViews &) const {
    return CopiesOfHeads::no;
}

TaskShape CudaBackend::task_shape(const heed_plan &) const { return {}; }

Size CudaBackend::lay_out(const heed_plan &plan, WorkspaceLayout *layout) const {
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    const Size sequences = {is_uniform(p) ? 0 : p.batch}, tables = {copies_pages(p) ? p.batch : 0};
    const Size tokens = {plan.splits.num_splits > 1 ? views.out.extent[0] * views.out.extent[1] : 0};
    Size total;
    layout->tasks = append_part(&total, sequences * num_sequence_fields * int64_t{sizeof(int32_t)});
    layout->pages = append_part(&total, tables * copied_pages(p) * int64_t{sizeof(int32_t)});
    layout->lse = append_lse(p, views, &total);
    layout->states = append_part(&total, tokens * p.num_heads * plan.splits.num_splits * state_floats(p.head_dim_v) *
                                             int64_t{sizeof(float)});
    return total;
}

// A table of sequences, and the longest of pages.
void CudaBackend::widen(heed_problem *problem) const {
    problem->kv_storage = HEED_KV_PAGED;
    problem->has_kv_lens = true;
    problem->num_pages = problem->page_size = 1;
    problem->max_pages_per_seq = problem->max_kv_len;
}

std::string CudaBackend::describe(const heed_plan &plan) const {
    const heed_problem &p = plan.problem;
    std::string text = "of device memory\n";
    if (plan.sequence_kernel == nullptr) {
        text += "metadata: none is read, all sequences are alike\n";
    } else if (p.metadata_on_device) {
        text += "metadata: on the device, read by " + std::string(plan.sequence_kernel->name) + "\n";
    } else {
        text += "metadata: from the host, " + std::to_string(num_host_launches(p)) + " launches of " +
                plan.sequence_kernel->name + "\n";
        if (copies_pages(p)) text += "page table: from the host, one launch for each 256 pages of a sequence\n";
    }
    if (plan.merge_kernel != nullptr) text += "splits: merged by " + std::string(plan.merge_kernel->name) + "\n";
    if (p.cuda_capability > 0) return text;
    return text + "compute capability: that of the context that was current, 8.0 or newer without one\n";
}

}  // namespace heed
