// The arguments of an attention row for one call.
#pragma once

#include "halide_bridge.h"
#include "plan.h"

namespace heed {

// What stands for tensors that a problem does not use; NULL where kernels do not look at them.
struct Unused {
    const uint8_t *may_attend = nullptr;
    const float *zero = nullptr, *no_sink = nullptr;
    const int32_t *no_page = nullptr;
};

// All but the table of tasks or sequences. Nothing is read through the tensors.
KernelCall make_call(const heed_plan &plan, const heed_args &args, const Unused &unused);

}  // namespace heed
