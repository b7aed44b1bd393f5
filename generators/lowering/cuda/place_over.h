#pragma once
// An array that has the place of another one, in shared memory, once that is used up.
//
// Halide lays one array over another by the order of stages, which copies that run ahead of their loop do not keep
// (shared_memory.h). Here a schedule names both. Refused: an access of the other array after, or in a loop with, one of
// the array; one that does not fit. Before DropBarriers, which sees the same bytes.
//
// Or before: the array is used up before the loop whose copies the other one holds (PipelineCopies), and has the place
// of its second buffer, to which only the loop copies, after a barrier.

#include <string>

#include "Halide.h"

namespace heed {

class PlaceOver : public Halide::Internal::IRMutator {
public:
    enum class When { after, before_copies };

    // The names of the arrays, to which Halide adds a number.
    PlaceOver(std::string array, std::string over, When when = When::after)
        : array(std::move(array)), over(std::move(over)), when(when) {}
    int found = 0;  // arrays

private:
    std::string array, over;
    const When when;
    int64_t first = 0, bytes = 0;  // of the place in the other one

    Halide::Expr moved(const Halide::Expr &index, const Halide::Type &type) const;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Free *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
    Halide::Expr visit(const Halide::Internal::Load *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

}  // namespace heed
