#include "generators/lowering/cuda/in_buffer.h"

#include "generators/common/bad_input.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Expr InBuffer::moved(const Expr &index, int size) const {
    const Expr behind = buffer * size;
    if (const auto *ramp = index.as<Ramp>()) return Ramp::make(ramp->base + behind, ramp->stride, ramp->lanes);
    return index + (index.type().is_vector() ? Broadcast::make(behind, index.type().lanes()) : behind);
}

Expr InBuffer::visit(const Load *op) {
    const auto size = sizes.find(op->name);
    if (size == sizes.end()) return IRMutator::visit(op);
    read.insert(op->name);
    const Expr index = moved(mutate(op->index), size->second);
    return Load::make(op->type, op->name, index, op->image, op->param, op->predicate, {});
}

Stmt InBuffer::visit(const Store *op) {
    const auto size = sizes.find(op->name);
    if (size == sizes.end()) return IRMutator::visit(op);
    if (stores == Stores::refuse) throw BadInput(op->name + " is copied in a loop, and something else stores to it");
    const Expr index = moved(mutate(op->index), size->second);
    return Store::make(op->name, mutate(op->value), index, op->param, op->predicate, {});
}

}  // namespace heed
