#pragma once
// Fragments of products in which a term may be left out whatever its factors are: elements are tested by their bits.

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

// A B fragment, UInt(64), with 0 in the place of each element that is infinite or NaN.
Halide::Expr numbers_of(ElementType type, const Halide::Expr &two_words);
// 1 where an element of a B fragment is infinity, 128 where it is minus infinity, 129 where it is NaN, else 0; and of a
// sum of up to 127 of them infinity of each sign that it has, which are to be added.
Halide::Expr counted_infinities(ElementType type, const Halide::Expr &two_words);
Halide::Expr add_infinities(const Halide::Expr &x, const Halide::Expr &counted);

}  // namespace heed::cuda
