// The checks of a problem, in a fixed order; none of them touches tensor data.
#pragma once

#include "generators/contract/fields.h"
#include "heed/heed.h"
#include "runtime/view.h"

namespace heed {

constexpr int32_t max_thread_limit = 1024;

// The views of every tensor that the problem names; absent ones have span 0. kv_scale: [1, pages, slots, kv heads].
struct ProblemViews {
    View q, k, v, out, lse, mask, bias, kv_scale;
};

// Copies `problem` (any struct version) into `copy` and checks, in this order: struct size; the range of each field,
// see heed/fields.h; rules between fields; strides, spans and self-overlap (fills `views`).
heed_status check_problem(const heed_problem *problem, heed_problem *copy, ProblemViews *views);

// There is no row to compute: batch or q_len is 0.
bool is_empty_problem(const heed_problem &problem);

// An empty problem, or one without queries. On the CPU also one without keys; kernels on CUDA write its results.
bool needs_no_kernel(const heed_problem &problem, const ProblemViews &views);

}  // namespace heed
