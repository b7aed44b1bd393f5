#pragma once
// Steps of a loop over blocks of keys that no row sees. As a condition of a reduction domain the test of a block guards
// the stores of a step only, and Halide computes the producers inside for every step; this pass lets the test guard all
// of the step.

#include "Halide.h"

namespace heed {

// The condition, marked for the pass.
Halide::Expr block_test(const Halide::Expr &condition);

// Lowering pass, after TrimLoops: in each loop whose name contains one of `loops`, the marked condition guards the
// body, from where on all that it reads has been computed. Marks elsewhere become their conditions.
class SkipBlocks : public Halide::Internal::IRMutator {
public:
    explicit SkipBlocks(std::vector<std::string> loops) : loops(std::move(loops)) {}

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;

private:
    Halide::Internal::Stmt guarded(const Halide::Internal::Stmt &body, const Halide::Expr &condition);

    const std::vector<std::string> loops;
    int depth = 0;  // of guarded loops around
};

}  // namespace heed
