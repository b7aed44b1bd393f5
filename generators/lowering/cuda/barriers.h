#pragma once
// Barriers that threads need.
//
// Halide puts a barrier between all stages of a block, those whose results stay in a thread's registers among them, and
// after each of several stages that the next one reads. This pass keeps a barrier only where what comes after it
// accesses an array in shared memory that was written since the last one, or writes one that was accessed. It runs
// before LowerSharedMemory. Threads hand each other nothing through tensors.

#include <set>
#include <string>

#include "Halide.h"

namespace heed {

class DropBarriers : public Halide::Internal::IRMutator {
public:
    using IRMutator::mutate;
    Halide::Internal::Stmt mutate(const Halide::Internal::Stmt &s) override;

private:
    // Arrays in shared memory.
    struct Accessed {
        std::set<std::string> read, written;

        void add(const Accessed &other);
        bool conflicts_with(const Accessed &other) const;
    };
    std::set<std::string> arrays;
    Accessed since;        // the last barrier that stays
    bool waiting = false;  // for what needs the barrier that was met

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;
    Halide::Internal::Stmt in_loop(const Halide::Internal::For *op);

    template <typename T>
    Accessed accessed_by(const T &what) const;
    // `s`, after a barrier where it needs the one that waits.
    Halide::Internal::Stmt separated(const Accessed &by, const Halide::Internal::Stmt &s);
};

}  // namespace heed
