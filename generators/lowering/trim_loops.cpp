#include "generators/lowering/trim_loops.h"

#include "generators/lowering/varies_in.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// How the stores of a loop are guarded.
class Guards : public IRVisitor {
public:
    explicit Guards(const std::string &variable) : variable(variable) {}

    Expr bound;
    bool one_bound = true;
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
        unguarded_store = unguarded_store || (!guarded && !in_stage);
        IRVisitor::visit(op);
    }
    void visit(const ProducerConsumer *op) override {
        const bool outer = in_stage;
        in_stage = in_stage || op->is_producer;
        op->body.accept(this);
        in_stage = outer;
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
    Guards guards(op->name);
    op->body.accept(&guards);
    if (op->for_type != ForType::Serial || !guards.bound.defined() || !guards.one_bound || guards.unguarded_store ||
        varies_in(op->body, guards.bound)) {
        throw CompileError("TrimLoops: the loop over " + op->name + " has no single bound that guards all its stores");
    }
    Expr guard = LT::make(Variable::make(Int(32), op->name), guards.bound);
    Stmt trimmed_body = DropGuards(guard).mutate(op->body);
    found++;
    Expr extent = max(min(op->extent, guards.bound - op->min), 0);
    return For::make(op->name, op->min, extent, op->for_type, op->partition_policy, op->device_api,
                     mutate(trimmed_body));
}

}  // namespace heed
