// Dropout's arithmetic that is not per element.
#pragma once

#include <cmath>
#include <cstdint>

namespace heed {

// An element of the mask is dropped when its Philox word is below: round(p * 2^32), 0..2^32. The product is exact.
inline uint64_t dropout_threshold(float p) { return static_cast<uint64_t>(std::round(double{p} * 4294967296.0)); }

}  // namespace heed
