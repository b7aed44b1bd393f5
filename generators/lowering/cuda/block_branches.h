#pragma once
// Stages of which a block of threads computes one of two forms.
//
// What a condition leaves out, a select computes nonetheless, and a branch for each element costs as much as it saves.
// This pass makes two forms of a stage whose values depend on same_for_block(), one where it holds and one where it
// does not, and a branch that all threads of a block take alike. specialize() would make a kernel of each.

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

class BranchBlocks : public Halide::Internal::IRMutator {
public:
    int found = 0;  // stages

private:
    Lets lets;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
};

}  // namespace heed
