#pragma once
// Element types of tensors, as kernels see them: f16 and bf16 are uint16 bit patterns in memory and float in
// arithmetic.

#include <string>

#include "Halide.h"

namespace heed {

// f16_by_integers: f16 on machines without instructions that convert it; the same bits.
enum class Element { f32, f16, f16_by_integers, bf16 };

// "f32", "f16" or "bf16".
Element element_of(const std::string &name, bool has_f16c);

Halide::Type stored_type(Element element);

Halide::Expr to_float(Element element, const Halide::Expr &stored);

// Rounds half to even; NaN stays NaN, values beyond the range become infinite.
Halide::Expr from_float(Element element, const Halide::Expr &x);

}  // namespace heed
