#pragma once
// Accesses to tensors at addresses (common/device_memory.h).
//
// Halide and LLVM see calls where the accesses are, and merge none. This pass makes accesses of 16 or 4 bytes of those
// of neighbouring elements in a straight line, where the first index is known to be a multiple of their number; a
// schedule that unrolls chunks of a row promises that the row begins at a multiple of their bytes. Loads go to the
// first of them, stores to the last, and an element is read once: results may go where they were read from.

#include <map>
#include <string>

#include "Halide.h"

namespace heed {

class LowerDeviceMemory : public Halide::Internal::IRMutator {
public:
    using IRMutator::mutate;
    Halide::Internal::Stmt mutate(const Halide::Internal::Stmt &s) override;

private:
    std::map<std::string, Halide::Expr> indices;  // values of a kernel's integers, in terms of its loops and parameters

    int kernels = 0;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

}  // namespace heed
