#pragma once
// Copies from tensors to shared memory, one step ahead of what reads them.
//
// A stage of a loop that copies 16 bytes at a time, or 4 (SharedCopy), into arrays that nothing outside such loops
// uses: this pass gives the arrays two buffers and makes asynchronous copies (cp.async, sm_80) for step i + 1 while
// step i computes; one barrier a step remains. What of an address does not depend on the step is computed before the
// loop. What a stage of the step finds of addresses is found two steps ahead (CopiedPlaces). A step whose body is one
// branch (SkipBlocks) copies nothing where its condition does not hold. Halide has no asynchronous copies, and a stage
// of its own cannot run ahead of its loop.
//
// A stage of the first such loop may be delayed by a step (DelayedStage): then what it alone reads is copied a step
// later than all else.
//
// Or in turns, where shared memory has no place for second buffers: what a step has read where one of its stages begins
// is copied for the next step from there on, all else for the step itself at its beginning; two barriers a step.

#include <map>
#include <optional>
#include <string>

#include "generators/lowering/cuda/delayed_stage.h"

namespace heed {

class PipelineCopies : public Halide::Internal::IRMutator {
public:
    // finds_bounds: what a copy's condition compares a step with is made of shared memory at each step, and in no
    // register from step to step. in_branches: addresses are computed in the branches around copies, outside of which
    // they may mean nothing. turn: the name of the Func before which arrays take turns; empty: they have two buffers.
    explicit PipelineCopies(bool finds_bounds = false, bool in_branches = false, std::string turn = "",
                            std::optional<StageDelay> delay = {})
        : finds_bounds(finds_bounds), in_branches(in_branches), turn(std::move(turn)), delay(std::move(delay)) {}
    int found = 0;  // loops

private:
    const bool finds_bounds, in_branches;
    const std::string turn;
    const std::optional<StageDelay> delay;
    // In shared memory.
    struct Array {
        int elements = 0, bytes = 0;
        int buffers = 1;
        std::map<const Halide::Internal::For *, int> accesses;  // of the loops that copy to it
    };
    std::map<std::string, Array> arrays;

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
};

}  // namespace heed
