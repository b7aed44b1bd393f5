#pragma once
// The lanes of a warp share out a loop.
//
// A schedule leaves a serial loop of 32 iterations, or of fewer, inside a thread whose name ends in `lanes`: the warp's
// threads are copies of each other up to there. Each lane does its own iteration. What all iterations update, a sum or
// a maximum in registers, is reduced over the lanes by five exchanges, so that all of them hold it afterwards; a sum
// must begin with 0. (Halide's gpu_lanes() has no reduction: 32 exchanges.)

#include "Halide.h"

namespace heed {

class DistributeLanes : public Halide::Internal::IRMutator {
public:
    int found = 0;

private:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
};

}  // namespace heed
