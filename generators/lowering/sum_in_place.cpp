#include "generators/lowering/sum_in_place.h"

#include <utility>
#include <vector>

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

struct Names {
    const std::string &sum, &state;
};

// state * factor of state * factor + sum; undefined where the value is no such sum.
struct Terms {
    const Mul *scaled = nullptr;
    const Load *added = nullptr;

    Terms(const Names &names, const Store *op) {
        const auto *add = op->value.as<Add>();
        if (!add || op->name != names.state) return;
        for (const auto &[product, sum] : {std::pair(add->a, add->b), std::pair(add->b, add->a)}) {
            const auto *load = sum.as<Load>();
            const auto *mul = product.as<Mul>();
            const auto *before = mul ? mul->a.as<Load>() : nullptr;
            if (!load || load->name != names.sum || !before || before->name != names.state) continue;
            if (equal(before->index, op->index)) added = load, scaled = mul;
        }
    }
};

// The loop that adds the sum to the state, with the factor of each of its stores.
class AddingLoop : public IRVisitor {
public:
    explicit AddingLoop(const Names &names) : names(names) {}

    const For *loop = nullptr;
    std::vector<Expr> factors;
    Expr offset;  // from an index of the sum to that of the state
    bool uniform = true;

private:
    using IRVisitor::visit;
    const Names names;
    const For *around = nullptr;

    static Expr first_index(const Expr &index) {
        const auto *ramp = index.as<Ramp>();
        return ramp ? ramp->base : index;
    }
    void visit(const For *op) override {
        const For *outer = around;
        around = op;
        IRVisitor::visit(op);
        around = outer;
    }
    void visit(const Store *op) override {
        const Terms terms(names, op);
        if (!terms.scaled) return;
        const Expr factor = terms.scaled->b;
        uniform = uniform && around && (!loop || loop == around) && !expr_uses_var(factor, around->name);
        if (!uniform) return;
        // Where the variable is cast to 64 bits after an addition, it falls out of the difference at a number only.
        const auto apart_at = [&](int number) {
            const Expr apart = first_index(op->index) - first_index(terms.added->index);
            return simplify(substitute(around->name, number, apart));
        };
        const Expr apart = apart_at(0);
        uniform = is_const(apart) && equal(apart, apart_at(1)) && (!offset.defined() || equal(offset, apart));
        loop = around;
        offset = apart;
        factors.push_back(factor);
    }
};

// In the stage of the sum: the state instead, which is not cleared.
class Redirect : public IRMutator {
public:
    Redirect(const Names &names, Expr offset) : names(names), offset(std::move(offset)) {}

private:
    using IRMutator::visit;
    const Names names;
    const Expr offset;

    Expr moved(const Expr &index) {
        const int lanes = index.type().lanes();
        return simplify(mutate(index) + (lanes == 1 ? offset : Broadcast::make(offset, lanes)));
    }
    Expr visit(const Load *op) override {
        if (op->name != names.sum) return IRMutator::visit(op);
        return Load::make(op->type, names.state, moved(op->index), op->image, op->param, op->predicate,
                          ModulusRemainder());
    }
    Stmt visit(const Store *op) override {
        if (op->name != names.sum) return IRMutator::visit(op);
        if (is_const_zero(op->value)) return Evaluate::make(0);
        return Store::make(names.state, mutate(op->value), moved(op->index), op->param, op->predicate,
                           ModulusRemainder());
    }
    Stmt visit(const LetStmt *op) override {
        Stmt body = mutate(op->body);
        return is_no_op(body) ? body : LetStmt::make(op->name, mutate(op->value), body);
    }
    Stmt visit(const For *op) override {
        Stmt body = mutate(op->body);
        if (is_no_op(body)) return body;
        return with_body(op, body);
    }
    Stmt visit(const Block *op) override { return joined(mutate(op->first), mutate(op->rest)); }
};

// What the loop does without its sums, on a variable of its own.
class ScalingLoop : public IRMutator {
public:
    explicit ScalingLoop(const Names &names) : names(names) {}

private:
    using IRMutator::visit;
    const Names names;

    Stmt visit(const Store *op) override {
        return Store::make(op->name, Terms(names, op).scaled, op->index, op->param, op->predicate, op->alignment);
    }
};

class InPlace : public IRMutator {
public:
    InPlace(const Names &names, const AddingLoop &adding) : names(names), adding(adding) {}

private:
    using IRMutator::visit;
    const Names names;
    const AddingLoop &adding;

    Expr some_factor() const {
        Expr some = const_false();
        for (const Expr &factor : adding.factors) {
            const Expr is_other = factor != make_one(factor.type());
            some = some || (factor.type().is_scalar() ? is_other : VectorReduce::make(VectorReduce::Or, is_other, 1));
        }
        return some;
    }
    Stmt visit(const ProducerConsumer *op) override {
        if (op->name != names.sum || !op->is_producer) return IRMutator::visit(op);
        const std::string variable = unique_name("rescaled");
        Stmt scaling = ScalingLoop(names).mutate(adding.loop->body);
        scaling = substitute(adding.loop->name, Variable::make(Int(32), variable), scaling);
        scaling = serial_loop(variable, adding.loop->min, adding.loop->extent, scaling);
        Stmt body = Redirect(names, adding.offset).mutate(op->body);
        return ProducerConsumer::make(op->name, true, Block::make(IfThenElse::make(some_factor(), scaling), body));
    }
    Stmt visit(const For *op) override { return op == adding.loop ? Evaluate::make(0) : IRMutator::visit(op); }
    Stmt visit(const Free *op) override { return op->name == names.sum ? Evaluate::make(0) : Stmt(op); }
};

}  // namespace

Stmt SumInPlace::visit(const Allocate *op) {
    if (op->name != sum) return IRMutator::visit(op);
    const Names names = {sum, state};
    AddingLoop adding(names);
    op->body.accept(&adding);
    if (!adding.loop || !adding.uniform) return IRMutator::visit(op);
    found++;
    return InPlace(names, adding).mutate(op->body);
}

}  // namespace heed
