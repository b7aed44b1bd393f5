#pragma once
// Lowering pass: the first arrays that a task allocates.
//
// What a task must find again in its next part of the keys is in memory of its block of rows, which the runtime hands
// out first. Halide allocates in the order in which consumers need producers. And a call in the middle of a task costs
// tiles their configuration (AMX), which is loaded again: so others can be allocated there too.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class FirstBlocks : public Halide::Internal::IRMutator {
public:
    // Arrays that a parallel loop's body allocates, each of a size that is known: allocated in this order, before all
    // others, and freed at the end of the body; with all_others those of the heap too, after them.
    explicit FirstBlocks(std::vector<std::string> arrays, bool all_others = false)
        : arrays(std::move(arrays)), all_others(all_others) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Free *op) override;

private:
    const std::vector<std::string> arrays;
    const bool all_others;
    bool in_task = false;
    std::vector<Halide::Internal::Stmt> taken;

    int place(const std::string &name) const;
};

}  // namespace heed
