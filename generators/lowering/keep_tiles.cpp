#include "generators/lowering/keep_tiles.h"

#include <algorithm>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

bool KeepTiles::is_tile(const std::string &name) const {
    return std::any_of(tiles.begin(), tiles.end(), [&](const std::string &tile) { return starts_with(name, tile); });
}

Stmt KeepTiles::visit(const Allocate *op) {
    if (!is_tile(op->name) || op->memory_type != MemoryType::Register) return IRMutator::visit(op);
    return Allocate::make(op->name, op->type, op->memory_type, op->extents, op->condition,
                          Block::make(mutate(op->body), Free::make(op->name)));
}

Stmt KeepTiles::visit(const Free *op) { return is_tile(op->name) ? Evaluate::make(0) : Stmt(op); }

}  // namespace heed
