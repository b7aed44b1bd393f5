#pragma once
// An array that has the place of another one, in shared memory, once that is used up.
//
// Halide lays one array over another by the order of stages, which copies that run ahead of their loop do not keep
// (shared_memory.h). Here a schedule names both. Refused: an access of the other array after, or in a loop with, one of
// the array; one that does not fit. Before DropBarriers, which sees the same bytes.

#include <string>

#include "Halide.h"

namespace heed {

class PlaceOver : public Halide::Internal::IRMutator {
public:
    // The names of the arrays, to which Halide adds a number.
    PlaceOver(std::string array, std::string over) : array(std::move(array)), over(std::move(over)) {}
    int found = 0;  // arrays

private:
    std::string array, over;
    int64_t bytes = 0;  // of the other one

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Free *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
    Halide::Expr visit(const Halide::Internal::Load *op) override;
};

}  // namespace heed
