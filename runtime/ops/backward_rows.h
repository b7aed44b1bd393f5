// Rows of tensors as rows of floats, padded with zeros, and back.
#pragma once

#include <cstdint>

#include "heed/heed.h"

namespace heed {

// `count` elements as floats, zeros up to `padded`. Whether all are finite.
bool load_row(const void *from, heed_dtype dtype, int32_t count, int32_t padded, float *to);

void store_row(const float *from, float factor, heed_dtype dtype, int32_t count, void *to);

}  // namespace heed
