// How much workspace a plan needs.
#pragma once

#include "heed/heed.h"
#include "runtime/view.h"

namespace heed {

struct ProblemViews;

// CUDA: floats of the state of a split of a row, a whole number of sectors of 32 bytes in front of its last two.
int32_t state_floats(int32_t head_dim_v);

// CUDA: entries of a row of the copy of the page table.
int32_t copied_pages(const heed_problem &problem);

// Appends a part of `bytes`, padded to scratch_alignment; where it begins.
int64_t append_part(Size *total, Size bytes);

// Room for an lse that the caller does not want.
int64_t append_lse(const heed_problem &problem, const ProblemViews &views, Size *total);

// Fills plan->workspace from its problem, kernel and splits; false when 64 bits do not hold it.
bool lay_out_workspace(heed_plan *plan);

// Bytes that suffice for every dense problem that is at most as large as this one in batch, max_q_len and max_kv_len,
// with any features and key storage, no num_splits asked and no kernel forced; -1 when 64 bits do not hold it, or a
// kernel no table of its tasks.
int64_t most_workspace_bytes(const heed_problem &largest);

}  // namespace heed
