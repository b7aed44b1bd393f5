// Elements of every type that a tensor of a case may have.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "heed/heed.h"

namespace heed_bench {

int64_t element_bytes(heed_dtype dtype);
const char *dtype_name(heed_dtype dtype);

// f32, f16, bf16 or i8; throws std::invalid_argument for another name.
heed_dtype dtype_of(const std::string &name);

// The nearest f16 or bf16, ties to even. Finite numbers of moderate size only.
uint16_t to_f16(float x);
uint16_t to_bf16(float x);

// Half a unit in the last place of 1: what rounding to the type may change, relative; 0 for f32.
double rounding(heed_dtype dtype);

// `count` elements from element `first` on, widened; infinities of f16 become NaN.
std::vector<float> widened(heed_dtype dtype, const void *data, int64_t first, int64_t count);

}  // namespace heed_bench
