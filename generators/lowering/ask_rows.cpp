#include "generators/lowering/ask_rows.h"

#include <algorithm>
#include <map>
#include <utility>

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// What tells, before any of them, whether a loop has a step.
class HasStep : public IRVisitor {
public:
    std::map<std::string, Expr> of;

    HasStep(const Stmt &body, const std::vector<std::string> &loops) : loops(loops) {
        body.accept(this);
        if (of.size() != loops.size()) throw CompileError("loops that ask for rows are missing");
    }

private:
    using IRVisitor::visit;
    const std::vector<std::string> &loops;

    void visit(const For *op) override {
        if (std::find(loops.begin(), loops.end(), op->name) == loops.end()) return IRVisitor::visit(op);
        if (!of.emplace(op->name, op->extent > 0).second) throw CompileError("there are two loops " + op->name);
    }
};

Expr iteration(const For *loop) { return Variable::make(Int(32), loop->name) - loop->min; }

}  // namespace

Stmt AskRows::visit(const ProducerConsumer *op) {
    if (op->name != names.produced || !op->is_producer) return IRMutator::visit(op);
    std::vector<std::string> loops;
    for (const Loops::Steps &steps : names.in_order) loops.push_back(steps.steps);
    loops.insert(loops.end(), names.askers.begin(), names.askers.end());
    const HasStep has_step(op->body, loops);
    // Named, for what an extent reads may be gone where a later loop asks.
    std::vector<std::pair<std::string, Expr>> lets;
    const auto named = [&](const Expr &value) {
        lets.emplace_back(unique_name("asks"), value);
        return Variable::make(Bool(), lets.back().first);
    };
    Expr others = const_false();
    for (const std::string &asker : names.askers) others = others || has_step.of.at(asker);
    for (const Loops::Steps &steps : names.in_order) {
        asks_in[steps.steps] = named(!others);
        others = named(others || has_step.of.at(steps.steps));
    }
    Stmt body = Block::make(IfThenElse::make(!others, burst_of(rows, 0, 1)), mutate(op->body));
    for (auto let = lets.rbegin(); let != lets.rend(); let++) body = LetStmt::make(let->first, let->second, body);
    return ProducerConsumer::make(op->name, op->is_producer, body);
}

Stmt AskRows::visit(const For *op) {
    const auto steps = std::find_if(names.in_order.begin(), names.in_order.end(),
                                    [&](const Loops::Steps &of) { return of.steps == op->name; });
    if (steps != names.in_order.end()) {
        steps_loop = op;
        keys_loop = steps->keys;
        Stmt result = IRMutator::visit(op);
        steps_loop = nullptr;
        keys_loop.clear();
        return result;
    }
    if (op->name != keys_loop) return IRMutator::visit(op);
    found++;
    const Stmt share =
        burst_of(rows, iteration(steps_loop) * op->extent + iteration(op), steps_loop->extent * op->extent);
    return with_body(op, Block::make(op->body, IfThenElse::make(asks_in.at(steps_loop->name), share)));
}

// A step that is skipped asks for its share at once.
Stmt AskRows::visit(const IfThenElse *op) {
    if (steps_loop == nullptr || op->else_case.defined()) return IRMutator::visit(op);
    const int found_before = found;
    const Stmt then_case = mutate(op->then_case);
    if (found == found_before) return IfThenElse::make(op->condition, then_case);
    const Stmt share = burst_of(rows, iteration(steps_loop), steps_loop->extent);
    return IfThenElse::make(op->condition, then_case, IfThenElse::make(asks_in.at(steps_loop->name), share));
}

}  // namespace heed
