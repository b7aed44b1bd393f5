// A plan: validated shapes, the chosen row, splits and the workspace layout.
#pragma once

#include <string>

#include "heuristics.h"
#include "kernel_registry.h"
#include "validate.h"

namespace heed {

// The workspace, from its 128-byte aligned start; each part starts at a multiple of 128. It depends on the problem and
// the row only, never on lengths.
//   tasks    int32 [max_tasks][num_task_fields]  execute's private, resolved copy of the metadata; CUDA:
//            int32 [batch][num_sequence_fields]  none for uniform problems
//   pages    int32 [batch][max_pages_per_seq, rounded up to even]  CUDA: a copy of a page table on the host
//   lse      f32 [batch][num_heads][tokens]      only when the caller does not want lse
//   states   f32 [batch][tokens][num_heads][num_splits][state_floats]  CUDA decode of more than one split only
//   slices   max_threads scratch slices of slice_bytes; the first has root_bytes more, for what a decode row's calling
//            thread allocates around its parallel loops; CUDA: none
// Empty problems need none.
struct WorkspaceLayout {
    int64_t tasks = 0, pages = 0, lse = 0, states = 0, slices = 0;  // offsets in bytes
    int64_t slice_bytes = 0, root_bytes = 0;
    int64_t total = 0;
};

}  // namespace heed

// Immutable after heed_plan_create.
struct heed_plan {
    heed_problem problem;  // scale, max_threads resolved
    heed::ProblemViews views;
    const heed::Kernel *row;
    const heed::OpKernel *table_row;  // CUDA: put_words or sequences, which makes the table; NULL for uniform problems
    const heed::OpKernel *merge_row;  // CUDA: merge_splits; NULL for one split
    heed::Splits splits;
    heed::WorkspaceLayout workspace;
    std::string explain;
};
