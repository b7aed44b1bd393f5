// Elements of tensors as floats, for work on weights that is done once and on rows around the kernels: the only
// conversion of f16 and bf16 in the runtime.
#pragma once

#include <cstdint>
#include <cstring>

#include "heed/types.h"

namespace heed {

// Element i of f32, f16 or bf16 data.
float load_element(const void *data, int64_t i, heed_dtype dtype);

// `count` elements from `data` on.
void load_elements(const void *data, heed_dtype dtype, int64_t count, float *to);

// Rounded to the nearest, ties to even, infinite above the largest; NaN stays NaN.
void store_elements(const float *from, heed_dtype dtype, int64_t count, void *data);
void store_element(void *data, int64_t i, heed_dtype dtype, float x);

}  // namespace heed
