#include "generators/lowering/cuda/block_branches.h"

#include "generators/common/bad_input.h"
#include "generators/lowering/cuda/decide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const same_name = "heed_same_for_block";

// In full, since lets may be those of an element.
class FindCondition : public LetVisitor {
public:
    Expr condition;

private:
    using LetVisitor::visit;
    void visit(const Call *op) override {
        IRVisitor::visit(op);
        if (op->name != same_name) return;
        const Expr found = lets.in_full(op->args[0]);
        if (condition.defined() && !equal(condition, found)) throw BadInput("a stage has two conditions of a block");
        condition = found;
    }
};

template <typename T>
Expr condition_of(const T &what) {
    FindCondition find;
    what.accept(&find);
    return find.condition;
}

}  // namespace

Stmt BranchBlocks::visit(const LetStmt *op) {
    // Halide has taken it out of a loop.
    if (condition_of(op->value).defined()) return mutate(substitute(op->name, op->value, op->body));
    return IRMutator::visit(op);
}

Stmt BranchBlocks::visit(const ProducerConsumer *op) {
    if (!op->is_producer) return IRMutator::visit(op);
    const Stmt body = mutate(op->body);  // stages in it first
    const Expr condition = condition_of(body);
    if (!condition.defined()) return ProducerConsumer::make(op->name, true, body);
    found++;
    const auto where = [&](bool holds) { return decided(body, same_name, holds); };
    return ProducerConsumer::make(op->name, true, IfThenElse::make(condition, where(true), where(false)));
}

}  // namespace heed
