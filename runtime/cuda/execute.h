// heed_execute on CUDA.
#pragma once

#include "plan.h"

namespace heed {

// Pointers are checked. Reads metadata on the host, launches the kernels and returns; see heed_execute for which driver
// calls that takes.
heed_status execute_on_cuda(const heed_plan &plan, const heed_args &args);

}  // namespace heed
