// The arguments of an attention row for one call.
#pragma once

#include "halide_bridge.h"
#include "plan.h"

namespace heed {

// All but the table of tasks or sequences. Nothing is read through the tensors; on CUDA their addresses are the
// device's.
KernelCall make_call(const heed_plan &plan, const heed_args &args);

}  // namespace heed
