#pragma once
// Lowering pass: inputs whose strides pass 2^31-1 elements. A buffer of Halide holds a stride in 32 bits; with
// LargeBuffers indices are computed in 64, from strides that are widened first, and this pass puts the arguments of 64
// bits there instead. What they multiply is widened term by term, which LLVM does not: it would multiply anew in each
// step of a loop (values of f32, two keys a step, 128 elements: 120 instructions instead of 74, 9 % of the kernel).

#include <map>
#include <string>

#include "Halide.h"

namespace heed {

class WideStrides : public Halide::Internal::IRMutator {
public:
    using Names = std::map<std::string, std::string>;  // "input.stride.N" to the argument, UInt(64), that has it

    explicit WideStrides(Names arguments) : arguments(std::move(arguments)) {}

    // For the inputs of attention kernels.
    static Names of_attention();

    int found = 0;  // uses of those strides in 32 bits, which stay

protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Mul *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
    Halide::Expr visit(const Halide::Internal::Cast *op) override;
    Halide::Expr visit(const Halide::Internal::Variable *op) override;
    // What compares the buffers as they come with what the kernel asks for.
    Halide::Internal::Stmt visit(const Halide::Internal::AssertStmt *op) override { return op; }

private:
    // In 64 bits; undefined for what is none of the strides.
    Halide::Expr wide(const Halide::Expr &stride) const;

    const Names arguments;
};

}  // namespace heed
