#include "generators/lowering/skip_blocks.h"

#include <algorithm>

#include "generators/common/serial_loop.h"
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
    if (!test.condition.defined())
        throw CompileError("SkipBlocks: the loop over " + op->name + " has no test of a block");
    depth++;
    Stmt step = guarded(op->body, test.condition);
    depth--;
    return with_body(op, step);
}

Stmt SkipBlocks::guarded(const Stmt &body, const Expr &condition) {
    if (!varies_in(body, condition)) return IfThenElse::make(condition, mutate(body));
    if (const auto *let = body.as<LetStmt>()) {
        return LetStmt::make(let->name, let->value, guarded(let->body, condition));
    }
    if (const auto *stage = body.as<ProducerConsumer>(); stage != nullptr && !stage->is_producer) {
        return ProducerConsumer::make(stage->name, false, guarded(stage->body, condition));
    }
    if (const auto *block = body.as<Block>()) return Block::make(block->first, guarded(block->rest, condition));
    if (const auto *memory = body.as<Allocate>()) {
        return Allocate::make(memory->name, memory->type, memory->memory_type, memory->extents, memory->condition,
                              guarded(memory->body, condition), memory->new_expr, memory->free_function,
                              memory->padding);
    }
    throw CompileError("SkipBlocks: no part of a step has a test of a block that comes before it");
}

// The test of a step that is not skipped holds.
Stmt SkipBlocks::visit(const IfThenElse *op) {
    return depth > 0 && tested(op->condition).defined() ? mutate(op->then_case) : IRMutator::visit(op);
}

Expr SkipBlocks::visit(const Call *op) { return op->name == test_name ? mutate(op->args[0]) : IRMutator::visit(op); }

}  // namespace heed
