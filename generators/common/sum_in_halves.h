#pragma once

#include "Halide.h"

namespace heed {

// The sum of terms (n, at), n in [first, first + count), as a balanced tree: one order on every instruction set. count
// is a power of two.
inline Halide::Expr sum_in_halves(const Halide::Func &terms, const Halide::Expr &at, int first, int count) {
    if (count == 1) return terms(first, at);
    return sum_in_halves(terms, at, first, count / 2) + sum_in_halves(terms, at, first + count / 2, count / 2);
}

}  // namespace heed
