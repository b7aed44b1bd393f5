// What a layer on CUDA launches between projections and attention, on its execution's stream.
#pragma once

#include "ops/steps.h"

namespace heed::cuda {

// Clamps elements to [-limit, limit]; NaN stays.
heed_status launch_clip(const heed_execution &execution, heed_dtype dtype, void *data, int64_t elements, float limit);

heed_status launch_norm(const heed_execution &execution, heed_dtype dtype, const NormRows &norm);

heed_status launch_key_padding(const heed_execution &execution, const KeyPadding &padding);

// Zeroes the bytes; the stream's context is current.
heed_status launch_clear(const heed_execution &execution, void *data, int64_t bytes);

}  // namespace heed::cuda
