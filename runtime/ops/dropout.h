// dropout_p as kernels see it.
#pragma once

#include <cmath>
#include <cstdint>

namespace heed {

// An element is dropped iff its word is below this: round(p * 2^32), 0..2^32, for p in 0..1. Exact: the product is a
// shift of p's exponent.
inline uint64_t dropout_threshold(float p) {
    return static_cast<uint64_t>(std::round(static_cast<double>(p) * 0x1p32));
}

}  // namespace heed
