// The sizes that rows can serve: their arithmetic is 32 bits wide in places.
#pragma once

#include "plan.h"

namespace heed {

// UNSUPPORTED for a plan, with row and splits, whose tensors or tables are beyond what its row can index.
heed_status check_limits(const heed_plan &plan);

}  // namespace heed
