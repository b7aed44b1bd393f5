#pragma once
// Lowering pass: a product that is added to a running sum is computed in it.
//
//   produce sum { sum[..] = 0; sum[i] = sum[i] + ..; }
//   for x: state[i + n] = state[i + n] * factor + sum[i]
//
// becomes
//
//   produce sum {
//     if some factor is not 1: for x: state[i + n] = state[i + n] * factor
//     state[i + n] = state[i + n] + ..
//   }
//
// The factors are those of rows, the same for all x. A Halide update cannot say so: its definition would have to be the
// product's loops, the rescaling and the other slots of the state at once.

#include <string>

#include "Halide.h"

namespace heed {

class SumInPlace : public Halide::Internal::IRMutator {
public:
    // `sum`, `state`: buffers of floats, the former allocated around all of it.
    SumInPlace(std::string sum, std::string state) : sum(std::move(sum)), state(std::move(state)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;

private:
    const std::string sum, state;
};

}  // namespace heed
