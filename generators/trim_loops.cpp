#include "trim_loops.h"

#include <set>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// What the body of a loop binds, allocates, stores to, and how its stores are guarded.
class LoopBody : public IRVisitor {
public:
    explicit LoopBody(const std::string &variable) : variable(variable) {}

    Expr bound;
    bool one_bound = true;
    std::set<std::string> bound_names, allocated, stored;
    bool unguarded_store = false;

private:
    using IRVisitor::visit;
    const std::string &variable;
    bool guarded = false;
    bool in_stage = false;  // a stage computed anew by each step

    Expr bound_of(const Expr &condition) const {
        if (const auto *less = condition.as<LT>()) {
            const auto *var = less->a.as<Variable>();
            return var && var->name == variable ? less->b : Expr();
        }
        return Expr();
    }

    void visit(const IfThenElse *op) override {
        Expr found = bound_of(op->condition);
        if (!found.defined()) {
            IRVisitor::visit(op);
            return;
        }
        one_bound = one_bound && (!bound.defined() || equal(bound, found)) && !op->else_case.defined();
        bound = found;
        const bool outer = guarded;
        guarded = true;
        op->then_case.accept(this);
        guarded = outer;
    }
    void visit(const Store *op) override {
        stored.insert(op->name);
        unguarded_store = unguarded_store || (!guarded && !in_stage);
        IRVisitor::visit(op);
    }
    void visit(const ProducerConsumer *op) override {
        const bool outer = in_stage;
        in_stage = in_stage || op->is_producer;
        op->body.accept(this);
        in_stage = outer;
    }
    void visit(const Allocate *op) override {
        allocated.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const For *op) override {
        bound_names.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const LetStmt *op) override {
        bound_names.insert(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Let *op) override {
        bound_names.insert(op->name);
        IRVisitor::visit(op);
    }
};

class Varies : public IRVisitor {
public:
    explicit Varies(const LoopBody &body) : body(body) {}
    bool result = false;

private:
    using IRVisitor::visit;
    const LoopBody &body;
    void visit(const Variable *op) override { result = result || body.bound_names.count(op->name); }
    void visit(const Load *op) override {
        result = result || body.stored.count(op->name) || body.allocated.count(op->name);
        IRVisitor::visit(op);
    }
    void visit(const Call *op) override {
        result = result || !op->is_pure();
        IRVisitor::visit(op);
    }
};

class DropGuards : public IRMutator {
public:
    explicit DropGuards(Expr guard) : guard(std::move(guard)) {}

private:
    using IRMutator::visit;
    const Expr guard;
    Stmt visit(const IfThenElse *op) override {
        return equal(op->condition, guard) ? mutate(op->then_case) : IRMutator::visit(op);
    }
};

}  // namespace

Stmt TrimLoops::visit(const For *op) {
    if (op->name.find(loops) == std::string::npos) {
        return IRMutator::visit(op);
    }
    LoopBody body(op->name);
    op->body.accept(&body);
    Varies varies(body);
    if (body.bound.defined()) {
        body.bound.accept(&varies);
    }
    if (op->for_type != ForType::Serial || !body.bound.defined() || !body.one_bound || body.unguarded_store ||
        varies.result) {
        throw CompileError("TrimLoops: the loop over " + op->name + " has no single bound that guards all its stores");
    }
    Expr guard = LT::make(Variable::make(Int(32), op->name), body.bound);
    Stmt trimmed_body = DropGuards(guard).mutate(op->body);
    trimmed++;
    Expr extent = max(min(op->extent, body.bound - op->min), 0);
    return For::make(op->name, op->min, extent, op->for_type, op->partition_policy, op->device_api,
                     mutate(trimmed_body));
}

}  // namespace heed
