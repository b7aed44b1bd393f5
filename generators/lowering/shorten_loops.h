#pragma once
// Lowering pass: loops end with what a task has to do, where no stage reads the rest.
//
// A loop over a pure variable computes all that some consumer may read. How much one does read, rows or keys that
// exist, is loaded from memory; RDom::where bounds reductions by that (TrimLoops), pure definitions have nothing like
// it.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class ShortenLoops : public Halide::Internal::IRMutator {
public:
    // Loops whose names end with one of these get at most this extent, which must be known where they are.
    ShortenLoops(std::vector<std::string> loops, Halide::Expr extent)
        : loops(std::move(loops)), extent(std::move(extent)) {}

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const std::vector<std::string> loops;
    const Halide::Expr extent;
};

}  // namespace heed
