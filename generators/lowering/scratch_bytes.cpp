#include "generators/lowering/scratch_bytes.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt ScratchBytes::visit(const For *op) {
    const bool outer = in_task;
    if (op->name == tasks) num_before = parallel_loops;
    if (!outer && op->for_type == ForType::Parallel) parallel_loops++;
    in_task = in_task || op->for_type == ForType::Parallel;
    Stmt result = IRMutator::visit(op);
    in_task = outer;
    return result;
}

Stmt ScratchBytes::visit(const Allocate *op) {
    const bool from_frame = op->memory_type == MemoryType::Register || op->memory_type == MemoryType::Stack;
    if (from_frame || !in_task) {
        return IRMutator::visit(op);
    }
    const int64_t elements = op->constant_allocation_size();
    constant = constant && elements > 0;
    const int64_t bytes = (elements * op->type.bytes() + 2 * alignment - 1) / alignment * alignment;
    if (std::find(kept.begin(), kept.end(), op->name) != kept.end()) {
        bytes_of_kept += bytes;
    }
    live += bytes;
    most = std::max(most, live);
    Stmt result = IRMutator::visit(op);
    live -= bytes;
    return result;
}

}  // namespace heed
