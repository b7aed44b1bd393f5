#pragma once
// Arrays in registers (MemoryType::Register) of a block's threads.
//
// A stage computed for a block keeps an array of the whole block's elements, of which each thread uses its own; Halide
// would give every thread all of them. This pass gives a thread what it accesses, with constant indices. What the lane
// stores whose number differs by one bit, all lanes read at once, by an exchange. Refused: an element whose place is
// not a constant after the thread's first one, or after that of such a lane; one that is read and not stored.

#include <map>
#include <string>

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

class PrivateRegisters : public Halide::Internal::IRMutator {
public:
    // threads: of a block whose places are compared, all or two warps of them.
    explicit PrivateRegisters(int threads = 64) : threads(threads) {}
    int found = 0;  // arrays

private:
    const int threads;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;

    Lets lets;
};

}  // namespace heed
