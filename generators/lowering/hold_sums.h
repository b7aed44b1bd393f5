#pragma once
// Lowering pass: the elements of an array to which a loop adds are in registers while it runs. LLVM does so by itself
// only where nothing in the loop may read the array, and believes that a prefetch may (8 sums of AVX2 over 32 keys: 31
// instructions a key with 8 stores, 22 without them).

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class HoldSums : public Halide::Internal::IRMutator {
public:
    // In loops whose name contains `loop`: all vectors of `array` that they access.
    HoldSums(std::string loop, std::string array) : loop(std::move(loop)), array(std::move(array)) {}

    int found = 0;  // loops

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const std::string loop, array;
};

}  // namespace heed
