// A plan: validated shapes, the chosen kernel, splits and the workspace layout.
#pragma once

#include <mutex>
#include <string>

#include "runtime/heuristics.h"
#include "runtime/kernel_registry.h"
#include "runtime/validate.h"

namespace heed {

// The workspace, from its 128-byte aligned start; each part starts at a multiple of 128. It depends on the problem and
// the kernel only, never on lengths.
//   tasks    int32 [max_tasks][num_task_fields]  execute's private, resolved copy of the metadata; CUDA:
//            int32 [batch][num_sequence_fields]  none for uniform problems
//   key_blocks  int32 [max_key_blocks][num_key_block_fields]  CPU kernels that pack keys: likewise
//   swept_tasks int32 [max_swept_tasks]  CPU kernels that sweep over mask and bias: likewise
//   bundles   TaskBundle [max_tasks]  CPU prefill that takes keys in parts (key_parts.h)
//   key_copies  copies of k and v, CPU prefill where they pay (cpu/key_copies.h)
//   pages    int32 [batch][max_pages_per_seq, rounded up to even]  CUDA: a copy of a page table on the host
//   lse      f32 [batch][num_heads][tokens]      only when the caller does not want lse
//   states   f32 [batch][tokens][num_heads][num_splits][state_floats]  CUDA decode of more than one split only
//   slices   max_threads scratch slices of slice_bytes, with the states of a bundle of tasks at their end; the first
//   has root_bytes more, for what the calling thread of
//            a kernel allocates around its parallel loops: packed keys and values, states of splits, results of sweeps;
//            CUDA: none
// Empty problems need none.
struct WorkspaceLayout {
    int64_t tasks = 0, key_blocks = 0, swept_tasks = 0, bundles = 0, key_copies = 0, pages = 0, lse = 0, states = 0,
            slices = 0;  // offsets in bytes
    int64_t slice_bytes = 0, root_bytes = 0;
    int64_t total = 0;
};

}  // namespace heed

// Immutable after heed_plan_create, except for the text.
struct heed_plan {
    heed_problem problem;  // scale, max_threads resolved
    heed::ProblemViews views;
    const heed::Kernel *kernel;
    const heed::OpKernel
        *sequence_kernel;  // CUDA: write_metadata or sequences, which makes the table; NULL for uniform problems
    const heed::OpKernel *merge_kernel;  // CUDA: merge_splits; NULL for one split
    heed::Splits splits;
    heed::TaskShape task_shape;
    heed::WorkspaceLayout workspace;
    uint32_t targets;  // of the machine, when the kernel was chosen
    bool forced;       // the kernel, by HEED_FORCE_KERNEL
    mutable std::mutex explain_mutex;
    mutable std::string explain;  // written when somebody asks: the words take longer than all the rest
};
