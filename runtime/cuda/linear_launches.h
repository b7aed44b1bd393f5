// Dense layers on CUDA.
#pragma once

#include "ops/linear.h"

namespace heed::cuda {

// A launch per piece of the call.
heed_status launch_linear(const LinearCall &call);

}  // namespace heed::cuda
