#pragma once

#include "Halide.h"

namespace heed {

// x / divisor, rounded up; x >= 0.
inline Halide::Expr ceil_div(const Halide::Expr &x, int divisor) { return (x + (divisor - 1)) / divisor; }

}  // namespace heed
