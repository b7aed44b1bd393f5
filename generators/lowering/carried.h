#pragma once
// What a step finds in a state that it is going to update.
//
// Stages computed inside the loop of an update of a Func cannot call that Func, nor can a stage of a loop call itself:
// Halide knows no recursion through several stages. carried() marks the call; the lowering pass makes a load from the
// Func's buffer of it, which in that place holds what the step before has left.

#include <string>

#include "Halide.h"

namespace heed {

// The slot of `row` of a Func of floats, rows innermost, before step `step`; after the loop what the last one left.
Halide::Expr carried(const Halide::Func &func, const Halide::Expr &row, const Halide::Expr &step);

// `value`, in a loop that so computes `stage` too: what only the next step or the end of the loop reads.
Halide::Expr once(const Halide::Expr &value, const Halide::Expr &stage);

// Lowers once(), after vectorisation.
class LowerOnce : public Halide::Internal::IRMutator {
protected:
    using IRMutator::visit;
    Halide::Expr visit(const Halide::Internal::Call *op) override;
};

// Lowers carried() too. `first`: index of row 0's slot in the buffer of the Func `func`.
class LoadCarried : public LowerOnce {
public:
    explicit LoadCarried(const std::string &func, int first = 0) : func(func), first(first), buffer(func) {}

protected:
    using LowerOnce::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Expr visit(const Halide::Internal::Call *op) override;

private:
    const std::string func;
    const int first;
    std::string buffer;
};

}  // namespace heed
