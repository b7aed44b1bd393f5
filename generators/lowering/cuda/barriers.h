#pragma once
// Barriers that threads need.
//
// Halide puts a barrier between all stages of a block, those whose results stay in a thread's registers among them, and
// after each of several stages that the next one reads. This pass keeps a barrier only where what comes after it
// accesses bytes of shared memory that were written before it, or writes some that were accessed. It runs before
// LowerSharedMemory. Threads hand each other nothing through tensors.

#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

class DropBarriers : public Halide::Internal::IRMutator {
public:
    using IRMutator::mutate;
    Halide::Internal::Stmt mutate(const Halide::Internal::Stmt &s) override;

    // Bytes of an array in shared memory.
    struct Bytes {
        std::string array;
        int64_t first, last;
        bool is_store;
    };
    using AllBytes = std::vector<Bytes>;

private:
    std::set<std::string> arrays;
    Lets lets;
    Halide::Internal::Scope<Halide::Internal::Interval> loops;
    // Since the last barrier that stays: before one that Halide has put, and after it.
    struct State {
        AllBytes before, since;
    } state;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt in_loop(const Halide::Internal::For *op);

    template <typename T>
    AllBytes accesses_of(const T &what) const;
    // Whether what accesses this needs a barrier before it, which then is one that stays.
    bool needs_barrier(const AllBytes &accesses);
};

}  // namespace heed
