#pragma once
// Sums over the lanes of vectors, by trees whose shape is fixed: the order of rounding is the algorithm's.

#include <vector>

#include "Halide.h"

namespace heed {

// The sum of a power of two of values: of the two halves added element by element, until one is left.
Halide::Expr lane_sum(const std::vector<Halide::Expr> &values);

// Lowering pass, after vectorisation. A vector of lane_sum whose operands are side by side in memory, lanes values each
// for lanes sums, is a transposition with additions in between: it becomes whole-vector loads, and per level shuffles
// that stay inside 128 bits where they can, one instruction each. (Left to strided loads or interleaves, LLVM moves
// single floats through integer registers: 87 instructions per key instead of 11 with four rows of 16 lanes.)
class LowerLaneSums : public Halide::Internal::IRMutator {
protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

}  // namespace heed
