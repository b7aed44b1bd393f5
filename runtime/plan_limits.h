// The sizes that kernels can serve: their arithmetic is 32 bits wide in places.
#pragma once

#include "runtime/plan.h"

namespace heed {

// UNSUPPORTED for a plan, with kernel and splits, whose tensors or tables are beyond what its kernel can index.
heed_status check_limits(const heed_plan &plan);

// Single strides that must stay 32 bits wide, where indices have 64.
heed_status check_stride_limits(const char *name, const View &view);

// Kernels add a query's index to a number of keys that its sequence has: pages hold that many at most.
heed_status check_lengths(const heed_plan &plan);

}  // namespace heed
