#pragma once
// What a step finds in the state that it is going to update.
//
// Stages computed inside the loop of an update of a Func cannot call that Func: Halide knows no recursion through
// several stages. carried() marks the call; the lowering pass makes a load from the Func's buffer of it, which in
// that place holds what the step before has left.

#include <string>

#include "Halide.h"

namespace heed {

// The slot of `row` before step `step`, of the only Func that the pass below names.
Halide::Expr carried(const Halide::Expr &row, const Halide::Expr &step);

// After vectorisation. `buffer`: of floats, rows innermost; `first`: index of row 0's slot.
class LoadCarried : public Halide::Internal::IRMutator {
public:
    LoadCarried(std::string buffer, int first) : buffer(std::move(buffer)), first(first) {}

protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Call *op) override;

private:
    const std::string buffer;
    const int first;
};

}  // namespace heed
