#include "generators/lowering/first_blocks.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

bool FirstBlocks::is_one(const std::string &name) const {
    return std::find(arrays.begin(), arrays.end(), name) != arrays.end();
}

Stmt FirstBlocks::visit(const For *op) {
    if (op->for_type != ForType::Parallel) return IRMutator::visit(op);
    Stmt body = mutate(op->body);
    for (auto name = arrays.rbegin(); name != arrays.rend(); ++name) {
        for (const Stmt &stmt : taken) {
            const auto *array = stmt.as<Allocate>();
            if (array->name != *name) continue;
            body = Allocate::make(array->name, array->type, array->memory_type, array->extents, array->condition,
                                  Block::make(body, Free::make(array->name)));
        }
    }
    taken.clear();
    return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, body);
}

Stmt FirstBlocks::visit(const Allocate *op) {
    if (!is_one(op->name)) return IRMutator::visit(op);
    if (op->constant_allocation_size() <= 0) throw CompileError(op->name + " has no size that is known");
    found++;
    taken.emplace_back(op);
    return mutate(op->body);
}

Stmt FirstBlocks::visit(const Free *op) { return is_one(op->name) ? Evaluate::make(0) : Stmt(op); }

}  // namespace heed
