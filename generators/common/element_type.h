#pragma once
// Element types of tensors. Kernels compute in float; f16 and bf16 elements are 16-bit patterns in buffers.

#include <cstdint>
#include <string>

#include "Halide.h"

namespace heed {

// Bits of a float.
constexpr int32_t infinity_bits = 0x7f800000, negative_infinity_bits = INT32_MIN + infinity_bits;
Halide::Expr bits(const Halide::Expr &x);

enum class ElementType { f32, f16, bf16, i8 };

const char *name_of(ElementType type);
// f32 for names of no type.
ElementType element_type_of(const std::string &name);

// How a buffer holds it: Float(32), UInt(16) or Int(8).
Halide::Type stored_type(ElementType type);

// The value of a stored element. Exact; of i8 the code, without its scale.
Halide::Expr to_float(ElementType type, const Halide::Expr &stored);

// The stored element nearest to a float, ties to even; NaN stays NaN. Not for i8.
Halide::Expr from_float(ElementType type, const Halide::Expr &value);

}  // namespace heed
