// The arguments of an attention kernel for one call.
#pragma once

#include "heed/fields.h"
#include "runtime/halide_bridge.h"
#include "runtime/plan.h"

namespace heed {

// What is passed for tensors that a problem does not use; NULL where kernels do not look at them.
struct Unused {
    const uint8_t *may_attend = nullptr;
    const float *zero = nullptr;
    const int32_t *no_page = nullptr;
#define HEED_DECLARE(name, ...) const float *name = nullptr;
    HEED_HEAD_ARRAYS(HEED_DECLARE)
#undef HEED_DECLARE
};

// All but the table of tasks or sequences. Nothing is read through the tensors.
KernelCall make_call(const heed_plan &plan, const heed_args &args, const Unused &unused);

}  // namespace heed
