#pragma once
// Products of tensor cores that are added to a running sum are computed in it.
//
//   produce sum { sum[..] = 0; sum[i] = sum[i] + ..; }
//   state[i] = state[i] * factor + sum[i], of each element
//
// becomes
//
//   produce sum {
//     if the factor of some element of a lane of the warp is not 1: state[i] = state[i] * factor, of each element
//     state[i] = state[i] + ..;
//   }
//
// and without a factor nothing comes before the product.
//
// A Halide update cannot say so (SumInPlace, which does this for CPUs, where the elements are a loop). The branch is
// the same in all lanes, as products of a warp need it.

#include <string>

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

class SumInRegisters : public Halide::Internal::IRMutator {
public:
    // The names of arrays of registers, to which Halide adds a number. Elements have the same places in both.
    SumInRegisters(std::string sum, std::string state) : sum(std::move(sum)), state(std::move(state)) {}
    int found = 0;

private:
    std::string sum, state;
    Lets lets;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
};

}  // namespace heed
