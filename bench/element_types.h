// Elements of every type that a tensor of a case may have, by name and as floats. Conversions are those of the
// reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heed/heed.h"

namespace heed_bench {

// f32, f16, bf16 or i8; throws std::invalid_argument for another name.
heed_dtype dtype_of(const std::string &name);

// `count` elements from element `first` on, as floats.
std::vector<float> widened(heed_dtype dtype, const void *data, int64_t first, int64_t count);

}  // namespace heed_bench
