#pragma once
// An array of a stage that takes the place of another, element by element.
//
// A stage that makes element i of one array in shared memory of element i of another, which nothing later reads, needs
// no second array. Halide gives stages that live at once arrays of their own, and an update in place can have no
// stages of its own. Refused: any other element of the other array that is read.

#include <string>

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

class ReplaceInPlace : public Halide::Internal::IRMutator {
public:
    // The names of the arrays, to which Halide adds a number.
    ReplaceInPlace(std::string made, std::string from) : made(std::move(made)), from(std::move(from)) {}
    int found = 0;  // arrays

private:
    std::string made, from;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Free *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
    Halide::Expr visit(const Halide::Internal::Load *op) override;
};

}  // namespace heed
