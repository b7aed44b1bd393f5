#pragma once
// Dot products of pairs of bf16 in f32: what VDPBF16PS computes in each 32-bit lane.

#include "Halide.h"

namespace heed {

// Two bf16 (as uint16) in one 32-bit lane, `low` in its lower half.
Halide::Expr bf16_pair(const Halide::Expr &low, const Halide::Expr &high);

// Half 0 or 1 of a pair, as a float.
Halide::Expr bf16_half(const Halide::Expr &pair, int half);

// The half of a pair of keys that is this key's, as a float.
Halide::Expr bf16_of_key(const Halide::Expr &pair, const Halide::Expr &key);

// A float as bf16 (as uint16), to nearest, ties to even. Subnormals may become 0.
Halide::Expr to_bf16(const Halide::Expr &value);

// accumulator + the dot product of two pairs. Subnormal bf16 may count as 0.
Halide::Expr bf16_dot(const Halide::Expr &accumulator, const Halide::Expr &a, const Halide::Expr &b);

// Argument `index` of a bf16_dot (accumulator, a, b); undefined where `e` is no such call.
Halide::Expr dot_operand(const Halide::Expr &e, int index);

// Lowering pass, after vectorisation: vectors of bf16_dot become the reduction that Halide turns into the instruction.
class LowerBf16Dots : public Halide::Internal::IRMutator {
public:
    int found = 0;  // vectors of bf16_dot

protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

}  // namespace heed
