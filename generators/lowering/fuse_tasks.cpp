#include "generators/lowering/fuse_tasks.h"

#include <functional>

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// A stage that is one parallel loop and names around it.
struct TaskLoop {
    const For *loop = nullptr;  // nullptr: it is no such stage
    Expr min, extent;           // without those names

    explicit TaskLoop(const Stmt &stage) { find(stage); }  // which must live

private:
    void find(const Stmt &stmt) {
        if (const auto *inner = stmt.as<ProducerConsumer>()) return find(inner->body);
        if (const auto *let = stmt.as<LetStmt>()) {
            find(let->body);
            for (Expr *end : {&min, &extent}) {
                if (end->defined()) *end = substitute(let->name, let->value, *end);
            }
            return;
        }
        loop = stmt.as<For>();
        if (loop && loop->for_type != ForType::Parallel) loop = nullptr;
        if (loop) min = loop->min, extent = loop->extent;
    }
};

// The stage with another loop, or what it becomes.
Stmt with_loop(const Stmt &stage, const std::function<Stmt(const For *)> &change) {
    if (const auto *let = stage.as<LetStmt>()) {
        return LetStmt::make(let->name, let->value, with_loop(let->body, change));
    }
    if (const auto *inner = stage.as<ProducerConsumer>()) {
        return ProducerConsumer::make(inner->name, inner->is_producer, with_loop(inner->body, change));
    }
    return change(stage.as<For>());
}

// Leaves out the stage and the allocation of a buffer.
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
        return Evaluate::make(0);
    }
};

// The tasks of a stage go on with those of `added`.
class AddTasks : public IRMutator {
public:
    AddTasks(const std::string &name, const Stmt &added) : name(name), added(added) {}

    bool done = false;

private:
    using IRMutator::visit;
    const std::string &name;
    const Stmt &added;

    Stmt visit(const ProducerConsumer *op) override {
        if (op->name != name || !op->is_producer) return IRMutator::visit(op);
        const TaskLoop own(op->body), other(added);
        done = own.loop && other.loop && equal(own.min, other.min) && equal(own.extent, other.extent);
        if (!done) return op;
        const Stmt both = with_loop(op->body, [&](const For *loop) {
            const Expr task = Variable::make(Int(32), loop->name);
            const Stmt more =
                with_loop(added, [&](const For *of_added) { return substitute(of_added->name, task, of_added->body); });
            return with_body(loop, Block::make(loop->body, more));
        });
        return ProducerConsumer::make_produce(name, both);
    }
};

}  // namespace

Stmt FuseTasks::visit(const Allocate *op) {
    if (op->name != first) return IRMutator::visit(op);
    TakeStage take(second);
    const Stmt rest = take.mutate(Stmt(op));
    if (!take.buffer || !take.stage.defined()) return op;
    AddTasks add(first, take.stage);
    const Stmt fused = add.mutate(rest);
    if (!add.done) return op;
    found++;
    const Allocate *buffer = take.buffer;
    return Allocate::make(buffer->name, buffer->type, buffer->memory_type, buffer->extents, buffer->condition, fused,
                          buffer->new_expr, buffer->free_function, buffer->padding);
}

}  // namespace heed
