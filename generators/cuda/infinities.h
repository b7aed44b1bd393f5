#pragma once
// Fragments of products in which a term may be left out whatever its factors are: elements are tested by their bits.

#include "Halide.h"
#include "generators/common/element_type.h"

namespace heed::cuda {

// Of a B fragment, UInt(64): 0 where an element is infinite or NaN.
Halide::Expr numbers_of(ElementType type, const Halide::Expr &two_words);
// 1 where an element of a B fragment is infinity of the sign or NaN, else 0.
Halide::Expr ones_of_infinities(ElementType type, const Halide::Expr &two_words, bool negative);

}  // namespace heed::cuda
