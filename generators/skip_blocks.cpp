#include "skip_blocks.h"

#include <algorithm>
#include <set>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

const char *const test_name = "heed_block_test";

// What a condition tests, undefined where it is no test.
Expr tested(const Expr &condition) {
    const Expr whole = substitute_in_all_lets(condition);
    const auto *call = whole.as<Call>();
    return call != nullptr && call->name == test_name ? call->args[0] : Expr();
}

// What the body of a loop binds and allocates, and what it tests.
class LoopBody : public IRVisitor {
public:
    Expr condition;
    std::set<std::string> bound, allocated;

private:
    using IRVisitor::visit;
    void visit(const IfThenElse *op) override {
        if (!condition.defined()) condition = tested(op->condition);
        IRVisitor::visit(op);
    }
    void visit(const LetStmt *op) override {
        bound.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const For *op) override {
        bound.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Allocate *op) override {
        allocated.insert(op->name);
        IRVisitor::visit(op);
    }
};

class ReadsInside : public IRVisitor {
public:
    explicit ReadsInside(const LoopBody &body) : body(body) {}
    bool result = false;

private:
    using IRVisitor::visit;
    const LoopBody &body;
    void visit(const Variable *op) override { result = result || body.bound.count(op->name) != 0; }
    void visit(const Load *op) override {
        result = result || body.allocated.count(op->name) != 0;
        IRVisitor::visit(op);
    }
};

}  // namespace

Expr block_test(const Expr &condition) { return Call::make(Bool(), test_name, {condition}, Call::PureExtern); }

Stmt SkipBlocks::visit(const For *op) {
    const bool asked = std::any_of(loops.begin(), loops.end(),
                                   [&](const std::string &loop) { return op->name.find(loop) != std::string::npos; });
    if (!asked) return IRMutator::visit(op);
    LoopBody body;
    op->body.accept(&body);
    ReadsInside reads(body);
    if (body.condition.defined()) body.condition.accept(&reads);
    if (!body.condition.defined() || reads.result) {
        throw CompileError("SkipBlocks: the loop over " + op->name + " has no test of a block that stands outside");
    }
    guarded++;
    Stmt step = IfThenElse::make(body.condition, mutate(op->body));
    return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, step);
}

// Of a step that is not skipped the test holds.
Stmt SkipBlocks::visit(const IfThenElse *op) {
    return guarded > 0 && tested(op->condition).defined() ? mutate(op->then_case) : IRMutator::visit(op);
}

Expr SkipBlocks::visit(const Call *op) { return op->name == test_name ? mutate(op->args[0]) : IRMutator::visit(op); }

}  // namespace heed
