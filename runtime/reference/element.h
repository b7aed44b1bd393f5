// Element types: rounding to f16 and bf16 and back, by Eigen. Round half to even; NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "heed/heed.h"

namespace heed_reference {

// Bytes of one element.
int64_t element_bytes(heed_dtype dtype);

// The bit pattern of x rounded to dtype (HEED_F16 or HEED_BF16), and the value of a bit pattern.
uint16_t to_bits(heed_dtype dtype, float x);
float from_bits(heed_dtype dtype, uint16_t bits);

// The largest finite value.
float largest_finite(heed_dtype dtype);

// x as the dtype would hold it; HEED_F32 changes nothing.
float round_to(heed_dtype dtype, float x);

// One row of an int8 cache: writes n codes and returns the scale; code * scale is exact in float. Rows that are
// small integers times a power of two keep their values, and so do rows that were quantized before. Other rows have
// max|x| at about 127, and if they hold NaN or infinity the scale is NaN.
float quantize_row(const float *row, int32_t n, int8_t *codes);

// "f32" and so on.
const char *dtype_name(heed_dtype dtype);

// Bit for bit.
inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

}  // namespace heed_reference
