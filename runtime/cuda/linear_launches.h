// Dense layers on CUDA.
#pragma once

#include "ops/linear.h"

namespace heed::cuda {

// Weights as for pack_linear, copied to memory of the current context that they own.
heed_status upload_linear(const char *name, const Driver &driver, heed_dtype dtype, int32_t dim_in, int32_t dim_out,
                          const WeightSource &weight, const void *bias, heed_linear_weights *weights);

// A launch per piece of the call. Clips nothing.
heed_status launch_linear(const LinearCall &call);

}  // namespace heed::cuda
