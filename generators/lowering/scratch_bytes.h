#pragma once
// Lowering pass that changes nothing: how many bytes of workspace a task of the kernel takes.

#include <cstdint>

#include "Halide.h"

namespace heed {

// Adds up what one task (the body of the parallel loop) gets from halide_malloc at the same time, each block rounded up
// to 128 bytes.
class ScratchBytes : public Halide::Internal::IRMutator {
public:
    // -1: some size is not a constant, the kernel needs a heap.
    int64_t per_task() const { return constant ? most : -1; }

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;

private:
    static constexpr int64_t alignment = 128;
    int64_t live = 0, most = 0;
    bool constant = true, in_task = false;
};

}  // namespace heed
