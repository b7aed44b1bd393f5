#pragma once
// Divisions of indices by extents, in kernels, are of numbers that are not negative: unsigned, they are half the code
// of Halide's signed ones, which round to minus infinity and know a division by 0.

#include "Halide.h"

namespace heed {

class UnsignedIndices : public Halide::Internal::IRMutator {
    int kernels = 0;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Expr visit(const Halide::Internal::Div *op) override;
    Halide::Expr visit(const Halide::Internal::Mod *op) override;
};

}  // namespace heed
