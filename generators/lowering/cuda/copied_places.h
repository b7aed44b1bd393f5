#pragma once
// Where a step's copies are copied from, when a stage of the step finds that: keys through pages, say. What is copied a
// step ahead (PipelineCopies) must be found two steps ahead, into one of two buffers, or of four where some of it is
// copied a step later.

#include <map>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/cuda/in_buffer.h"
#include "generators/lowering/cuda/shared_memory.h"

namespace heed {

class CopiedPlaces {
public:
    // Takes the stages that store arrays which the copies' addresses read out of the loop's body; elements: of all
    // arrays in shared memory. The addresses then read from the buffer of their step.
    CopiedPlaces(const Halide::Internal::For *loop, Halide::Internal::Stmt *body,
                 const std::vector<SharedCopy *> &copies, const std::map<std::string, int> &elements, int buffers);

    // With the elements of a buffer.
    const std::map<std::string, int> &arrays() const { return sizes; }
    // Nothing where the loop has no such step.
    Halide::Internal::Stmt find(const Halide::Expr &step, const Halide::Expr &steps) const;

private:
    const Halide::Internal::For *const loop;
    const int buffers;
    std::map<std::string, int> sizes;
    std::vector<Halide::Internal::Stmt> stages;
    std::map<std::string, Halide::Expr> lets;  // of the body, around stages

    InBuffer in_buffer() const;
};

}  // namespace heed
