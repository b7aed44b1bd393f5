#pragma once
// A stage that is computed once more where its result is in doubt.
//
// What is seldom needed (values of hidden keys that are no numbers, say) would cost in each step of a loop. An
// algorithm says by in_repetition() what a stage does otherwise the second time, and by a stage of its own, of words in
// registers, where the first result is in doubt: if it is in some thread of a block, all compute the stage again.

#include <map>
#include <set>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class RepeatLoops : public Halide::Internal::IRMutator {
public:
    // The names of Funcs. held: those that the stage reads from registers; the second time each step computes them, so
    // that more registers are free.
    RepeatLoops(std::string stage, std::string doubts, std::set<std::string> held)
        : stage(std::move(stage)), doubts(std::move(doubts)), held(std::move(held)) {}
    int found = 0;

private:
    const std::string stage, doubts;
    const std::set<std::string> held;
    Halide::Internal::Stmt repetition;
    std::vector<Halide::Internal::Stmt> held_stages;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
};

// After all passes that compare the places of threads: numbers of threads and blocks are read anew in the
// repetition, in its loops at each step, and after it. What is computed from them would else stay in registers from the
// first time on.
class ReadThreadsAnew : public Halide::Internal::IRMutator {
public:
    // The names of the Funcs that are read after the repetition: of the doubts, and of what is handed on. made_anew:
    // of those whose own computation reads them anew, in the loops or after.
    explicit ReadThreadsAnew(std::set<std::string> read_after, std::set<std::string> made_anew = {})
        : read_after(std::move(read_after)), made_anew(std::move(made_anew)) {}

private:
    const std::set<std::string> read_after, made_anew;
    std::string block;                               // the variable of its number
    std::map<std::string, Halide::Expr> of_threads;  // values that depend on these numbers
    bool in_repetition = false;

    Halide::Internal::Stmt anew(const Halide::Internal::Stmt &s) const;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
};

}  // namespace heed
