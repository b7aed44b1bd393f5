#include "generators/lowering/skip_blocks.h"

#include <algorithm>

#include "generators/lowering/varies_in.h"

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

// The first test in the body of a loop.
class FindTest : public IRVisitor {
public:
    Expr condition;

private:
    using IRVisitor::visit;
    void visit(const IfThenElse *op) override {
        if (!condition.defined()) condition = tested(op->condition);
        IRVisitor::visit(op);
    }
};

}  // namespace

Expr block_test(const Expr &condition) { return Call::make(Bool(), test_name, {condition}, Call::PureExtern); }

Stmt SkipBlocks::visit(const For *op) {
    const bool asked = std::any_of(loops.begin(), loops.end(),
                                   [&](const std::string &loop) { return op->name.find(loop) != std::string::npos; });
    if (!asked) return IRMutator::visit(op);
    FindTest test;
    op->body.accept(&test);
    if (!test.condition.defined() || varies_in(op->body, test.condition)) {
        throw CompileError("SkipBlocks: the loop over " + op->name + " has no test of a block that stands outside");
    }
    depth++;
    Stmt step = IfThenElse::make(test.condition, mutate(op->body));
    depth--;
    return For::make(op->name, op->min, op->extent, op->for_type, op->partition_policy, op->device_api, step);
}

// Of a step that is not skipped the test holds.
Stmt SkipBlocks::visit(const IfThenElse *op) {
    return depth > 0 && tested(op->condition).defined() ? mutate(op->then_case) : IRMutator::visit(op);
}

Expr SkipBlocks::visit(const Call *op) { return op->name == test_name ? mutate(op->args[0]) : IRMutator::visit(op); }

}  // namespace heed
