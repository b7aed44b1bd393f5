#pragma once
// One operation on floats as it is written. strict_float() would hold all of what its operands are made of as well, so
// that none of that becomes an FMA.

#include "Halide.h"

namespace heed {

// op: Call::strict_add and its like.
inline Halide::Expr strict(Halide::Internal::Call::IntrinsicOp op, const Halide::Expr &a, const Halide::Expr &b) {
    const Halide::Type type = op == Halide::Internal::Call::strict_lt ? Halide::Bool() : Halide::Float(32);
    return Halide::Internal::Call::make(type, op, {a, b}, Halide::Internal::Call::PureIntrinsic);
}

}  // namespace heed
