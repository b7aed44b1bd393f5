#pragma once
// Lowering pass, after vectorisation: the maximum of a vector's lanes is taken by halves, a shuffle and a maximum for
// each. Left alone, LLVM takes one lane after the other, with a test for NaN each: 62 instructions for 16 lanes, which
// wait for one another (a sixth of the time of decoding with four rows of bf16, Zen 5). Where a lane is NaN, so may be
// the maximum or not: callers see a NaN by its weight, in either case.

#include "Halide.h"

namespace heed {

class LowerLaneMaxima : public Halide::Internal::IRMutator {
protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::VectorReduce *op) override;
};

}  // namespace heed
