#pragma once
// Lowering pass: ends a loop where its work ends.
//
// RDom::where with a bound that is read from memory (the number of key blocks of a task) guards the stores of a loop,
// but Halide keeps the loop at its full extent and computes the producers inside for every step: its own trimming stops
// at loads.

#include <string>

#include "Halide.h"

namespace heed {

// For every loop over a variable whose name contains `loops`: if it is serial and each store of the loop, except for
// those of the stages that every step computes anew, is guarded by the same `variable < bound`, with a bound that the
// loop leaves unchanged, the extent becomes min(extent, bound). Any other loop of that name is an error
// (Halide::CompileError): its steps would read keys that do not exist. A partitioned loop is one, so a schedule keeps
// Halide from it with partition(Partition::Never).
class TrimLoops : public Halide::Internal::IRMutator {
public:
    explicit TrimLoops(std::string loops) : loops(std::move(loops)) {}

    int found = 0;  // loops

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const std::string loops;
};

}  // namespace heed
