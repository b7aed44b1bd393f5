// From a plan's problem and a call's tensors to what kernels take; shared by attention and its probabilities.
#pragma once

#include "halide_bridge.h"
#include "plan.h"

namespace heed {

// Reverses a view into a kernel's dimension order.
KernelBuffer kernel_buffer(void *data, heed_dtype dtype, const View &view);

MaskForm mask_form(const heed_problem &problem);
BiasForm bias_form(const heed_problem &problem);

// The threads and the pool that a call asks for.
heed_status check_threads(const heed_plan &plan, const heed_args &args);

// Kernels scale the cap by log2(e) and divide by it: kept normal. Below 2^-100 every cap flattens the logits alike.
float kernel_softcap(float softcap);

}  // namespace heed
