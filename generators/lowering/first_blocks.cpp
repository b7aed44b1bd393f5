#include "generators/lowering/first_blocks.h"

#include <algorithm>

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

int FirstBlocks::place(const std::string &name) const {
    return static_cast<int>(std::find(arrays.begin(), arrays.end(), name) - arrays.begin());
}

Stmt FirstBlocks::visit(const For *op) {
    if (op->for_type != ForType::Parallel) return IRMutator::visit(op);
    in_task = true;
    Stmt body = mutate(op->body);
    in_task = false;
    std::stable_sort(taken.begin(), taken.end(), [this](const Stmt &a, const Stmt &b) {
        return place(a.as<Allocate>()->name) < place(b.as<Allocate>()->name);
    });
    for (auto stmt = taken.rbegin(); stmt != taken.rend(); ++stmt) {
        const auto *array = stmt->as<Allocate>();
        body = Allocate::make(array->name, array->type, array->memory_type, array->extents, array->condition,
                              Block::make(body, Free::make(array->name)), array->new_expr, array->free_function,
                              array->padding);
    }
    taken.clear();
    return with_body(op, body);
}

Stmt FirstBlocks::visit(const Allocate *op) {
    const bool is_known = op->constant_allocation_size() > 0;
    const bool is_named = static_cast<int>(arrays.size()) > place(op->name);
    const bool is_other = all_others && in_task && is_known && op->memory_type == MemoryType::Heap;
    if (!is_named && !is_other) return IRMutator::visit(op);
    if (!is_known) throw CompileError(op->name + " has no size that is known");
    if (is_named) found++;
    taken.emplace_back(op);
    return mutate(op->body);
}

Stmt FirstBlocks::visit(const Free *op) {
    const auto is_it = [op](const Stmt &array) { return array.as<Allocate>()->name == op->name; };
    return std::any_of(taken.begin(), taken.end(), is_it) ? Evaluate::make(0) : Stmt(op);
}

}  // namespace heed
