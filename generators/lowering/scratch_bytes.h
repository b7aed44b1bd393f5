#pragma once
// Lowering pass that changes nothing: how many bytes of workspace a task of the kernel takes.

#include <cstdint>
#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

// Adds up what one task (the body of the parallel loop) gets from halide_malloc at the same time, each block rounded up
// to 128 bytes.
class ScratchBytes : public Halide::Internal::IRMutator {
public:
    // `kept`: arrays of a task. `tasks`: the loop over tasks, where it matters how many are before it.
    ScratchBytes(std::vector<std::string> kept, std::string tasks) : kept(std::move(kept)), tasks(std::move(tasks)) {}

    // -1: some size is not a constant, the kernel needs a heap.
    int64_t per_task() const { return constant ? most : -1; }
    // Those of the arrays `kept` alone, and how many parallel loops come before that of the tasks.
    int64_t kept_bytes() const { return bytes_of_kept; }
    int loops_before() const { return num_before; }

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;

private:
    static constexpr int64_t alignment = 128;
    const std::vector<std::string> kept;
    const std::string tasks;
    int64_t live = 0, most = 0, bytes_of_kept = 0;
    int parallel_loops = 0, num_before = 0;
    bool constant = true, in_task = false;
};

}  // namespace heed
