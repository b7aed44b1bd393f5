#pragma once
// The launches of a pipeline as one.
//
// Halide launches a kernel for each definition and for each specialisation. A launch costs about as much as these
// kernels run, and an operation is one kernel of the table: this pass numbers the blocks of all of them one after the
// other, along one dimension, which has 2^31 blocks (the others 65,535). What is outside the innermost loop over blocks
// is the same for all parts.

#include <string>

#include "Halide.h"

namespace heed {

class JoinLaunches : public Halide::Internal::IRMutator {
public:
    // threads: of a block.
    JoinLaunches(std::string output, int threads) : output(std::move(output)), threads(threads) {}
    int found = 0;

private:
    const std::string output;
    const int threads;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
};

}  // namespace heed
