#include "generators/lowering/fuse_loops.h"

#include <functional>

#include "generators/common/serial_loop.h"
#include "generators/lowering/step_stages.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// A stage is a few stores, a loop and what frees arrays after it, with names around them.
enum class StagePart { start, loop, end };

// The part of a stage, the loop as what `change` makes of it. Without the other parts it keeps the names.
class PartOfStage {
public:
    PartOfStage(StagePart part, std::function<Stmt(const For *)> change) : part(part), change(std::move(change)) {}

    Stmt of(const Stmt &stmt) {
        if (const auto *let = stmt.as<LetStmt>()) {
            const Stmt body = of(let->body);
            return is_no_op(body) ? body : LetStmt::make(let->name, let->value, body);
        }
        if (const auto *inner = stmt.as<ProducerConsumer>()) {
            const Stmt body = of(inner->body);
            return is_no_op(body) ? body : ProducerConsumer::make(inner->name, inner->is_producer, body);
        }
        if (const auto *block = stmt.as<Block>()) {
            const Stmt first = of(block->first);  // in the order of the stage
            return joined(first, of(block->rest));
        }
        const auto *loop = stmt.as<For>();
        if (loop && here == StagePart::start) {
            here = StagePart::end;
            return part == StagePart::loop ? change(loop) : Evaluate::make(0);
        }
        if (here == StagePart::end && !stmt.as<Free>()) throw CompileError("FuseLoops: a stage is not one loop");
        return part == here ? stmt : Evaluate::make(0);
    }

private:
    const StagePart part;
    const std::function<Stmt(const For *)> change;
    StagePart here = StagePart::start;
};

Stmt part_of(const Stmt &stage, StagePart part) {
    return PartOfStage(part, [](const For *loop) { return Stmt(loop); }).of(stage);
}

Stmt with_loop(const Stmt &stage, const std::function<Stmt(const For *)> &change) {
    return PartOfStage(StagePart::loop, change).of(stage);
}

bool same_iterations(const For *a, const For *b) {
    return a && b && a->for_type == b->for_type && equal(a->min, b->min) && equal(a->extent, b->extent);
}

// Leaves out the allocation of a buffer, and of its stage all but what frees arrays.
class TakeStage : public IRMutator {
public:
    explicit TakeStage(const std::string &name) : name(name) {}

    const Allocate *buffer = nullptr;
    Stmt stage;

private:
    using IRMutator::visit;
    const std::string &name;

    Stmt visit(const Allocate *op) override {
        if (op->name != name) return IRMutator::visit(op);
        buffer = op;
        return mutate(op->body);
    }
    Stmt visit(const ProducerConsumer *op) override {
        if (op->name != name || !op->is_producer) return IRMutator::visit(op);
        stage = op->body;
        return part_of(stage, StagePart::end);
    }
};

// The iterations of a stage go on with those of `added`.
class AddIterations : public IRMutator {
public:
    AddIterations(const std::string &name, const Stmt &added) : name(name), added(added) {}

    bool done = false;

private:
    using IRMutator::visit;
    const std::string &name;
    const Stmt &added;

    Stmt visit(const ProducerConsumer *op) override {
        if (op->name != name || !op->is_producer) return IRMutator::visit(op);
        const KeyLoop own(without_lets(op->body)), other(without_lets(added));
        done = same_iterations(own.loop, other.loop);
        if (!done) return op;
        const Expr iteration = Variable::make(Int(32), own.loop->name);
        const Stmt more = with_loop(
            added, [&](const For *of_added) { return substitute(of_added->name, iteration, of_added->body); });
        const Stmt both =
            with_loop(op->body, [&](const For *loop) { return with_body(loop, Block::make(loop->body, more)); });
        return ProducerConsumer::make_produce(
            name, Block::make({part_of(op->body, StagePart::start), part_of(added, StagePart::start), both,
                               part_of(op->body, StagePart::end)}));
    }
};

}  // namespace

Stmt FuseLoops::visit(const Allocate *op) {
    if (op->name != first) return IRMutator::visit(op);
    TakeStage take(second);
    const Stmt rest = take.mutate(Stmt(op));
    if (!take.buffer || !take.stage.defined()) return op;
    AddIterations add(first, take.stage);
    const Stmt fused = add.mutate(rest);
    if (!add.done) return op;
    found++;
    const Allocate *buffer = take.buffer;
    return Allocate::make(buffer->name, buffer->type, buffer->memory_type, buffer->extents, buffer->condition, fused,
                          buffer->new_expr, buffer->free_function, buffer->padding);
}

}  // namespace heed
