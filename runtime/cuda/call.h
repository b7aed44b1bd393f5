// The arguments of an attention kernel on CUDA.
#pragma once

#include "runtime/halide_bridge.h"
#include "runtime/plan.h"

namespace heed {

// With the table of sequences, which put_sequences() writes. Addresses are the device's.
KernelCall make_cuda_call(const heed_plan &plan, const heed_args &args);

}  // namespace heed
