#include "generators/lowering/ask_rows.h"

#include <algorithm>

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// Whether no loop of those has a step.
class NoSteps : public IRVisitor {
public:
    Expr none = const_true();
    size_t found = 0;

    explicit NoSteps(const std::vector<std::string> &loops) : loops(loops) {}

private:
    using IRVisitor::visit;
    const std::vector<std::string> &loops;

    void visit(const For *op) override {
        if (std::find(loops.begin(), loops.end(), op->name) == loops.end()) return IRVisitor::visit(op);
        none = none && op->extent <= 0;
        found++;
    }
};

}  // namespace

Stmt AskRows::visit(const ProducerConsumer *op) {
    if (op->name != names.produced || !op->is_producer) return IRMutator::visit(op);
    NoSteps next(names.next_steps);
    op->body.accept(&next);
    if (next.found != names.next_steps.size()) throw CompileError("loops that ask for rows are not in " + op->name);
    no_next = next.none;
    return IRMutator::visit(op);
}

Stmt AskRows::visit(const For *op) {
    if (op->name == names.steps) {
        is_last = Variable::make(Int(32), op->name) == op->min + op->extent - 1;
        const Stmt all = IfThenElse::make(no_next && op->extent <= 0, burst_of(rows, 0, 1));
        return Block::make(all, with_body(op, mutate(op->body)));
    }
    if (op->name != names.keys) return IRMutator::visit(op);
    found++;
    const Stmt share = burst_of(rows, Variable::make(Int(32), op->name) - op->min, op->extent);
    return with_body(op, Block::make(op->body, IfThenElse::make(no_next && is_last, share)));
}

}  // namespace heed
