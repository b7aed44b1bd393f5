#include "generators/lowering/start_sums.h"

#include "generators/lowering/bf16_product.h"
#include "generators/lowering/step_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Expr hold_something(const std::string &started) {
    return Load::make(Int(32), started, 0, Buffer<>(), Parameter(), const_true(), ModulusRemainder()) != 0;
}

Stmt StartSums::visit(const ProducerConsumer *op) {
    if (op->name != names.sums || !op->is_producer) return IRMutator::visit(op);
    const auto *block = op->body.as<Block>();
    const auto *first = block ? block->first.as<For>() : nullptr;
    if (!first) throw CompileError("no loop initialises " + names.sums);
    found++;
    const Stmt clear = part_of(first, kept, simplify(first->extent - kept));
    const Stmt body =
        Block::make({part_of(first, 0, kept), block->rest, IfThenElse::make(!hold_something(names.started), clear)});
    const Stmt begin = Store::make(names.started, Broadcast::make(select(goes_on, 1, 0), tile_edge),
                                   Ramp::make(0, 1, tile_edge), Parameter(), const_true(tile_edge), ModulusRemainder());
    return Allocate::make(names.started, Int(32), MemoryType::Stack, {tile_edge}, const_true(),
                          Block::make(begin, ProducerConsumer::make_produce(op->name, body)));
}

}  // namespace heed
