#include "generators/lowering/start_sums.h"

#include "generators/lowering/bf16_product.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

Stmt StartSums::visit(const ProducerConsumer *op) {
    if (op->name != names.sums || !op->is_producer) return IRMutator::visit(op);
    const auto *block = op->body.as<Block>();
    const auto *first = block ? block->first.as<For>() : nullptr;
    if (!first) throw CompileError("no loop initialises " + names.sums);
    found++;
    const auto part = [&](const Expr &begin, const Expr &extent) {
        const std::string name = unique_name(first->name);
        const Stmt body = substitute(first->name, Variable::make(Int(32), name), first->body);
        return For::make(name, simplify(first->min + begin), simplify(extent), first->for_type, first->partition_policy,
                         first->device_api, body);
    };
    const Expr nothing_added =
        Load::make(Int(32), names.started, 0, Buffer<>(), Parameter(), const_true(), ModulusRemainder()) == 0;
    const Stmt body =
        Block::make({part(0, kept), block->rest, IfThenElse::make(nothing_added, part(kept, first->extent - kept))});
    const Stmt begin = Store::make(names.started, Broadcast::make(select(goes_on, 1, 0), tile_edge),
                                   Ramp::make(0, 1, tile_edge), Parameter(), const_true(tile_edge), ModulusRemainder());
    return Allocate::make(names.started, Int(32), MemoryType::Stack, {tile_edge}, const_true(),
                          Block::make(begin, ProducerConsumer::make_produce(op->name, body)));
}

}  // namespace heed
