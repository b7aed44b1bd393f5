#include "generators/lowering/cuda/sum_in_registers.h"

#include <optional>
#include <vector>

#include "generators/common/array_names.h"
#include "generators/common/bad_input.h"
#include "generators/cuda/intrinsics.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

struct Scaling {
    Expr index, factor;
};

Expr load_float(const std::string &array, const Expr &index) {
    return Load::make(Float(32), array, index, Buffer<>(), Parameter(), const_true(), {});
}

// state = state * factor + sum[added]; factor: undefined for 1
struct Addition {
    Expr factor, added;
};

std::optional<Addition> addition(const Store *op, const std::string &sum, const std::string &state) {
    const auto *add = op->name == state ? op->value.as<Add>() : nullptr;
    if (add == nullptr) return {};
    const auto is_of = [](const Expr &e, const std::string &array) {
        const auto *load = e.as<Load>();
        return load != nullptr && load->name == array;
    };
    const bool sum_first = is_of(add->a, sum);
    if (!sum_first && !is_of(add->b, sum)) return {};
    const Expr added = (sum_first ? add->a : add->b).as<Load>()->index, scaled = sum_first ? add->b : add->a;
    if (is_of(scaled, state)) return Addition{Expr(), added};
    const auto *product = scaled.as<Mul>();
    if (product == nullptr) return {};
    return Addition{is_of(product->a, state) ? product->b : product->a, added};
}

// The stores that add the sum to the state.
class AddingStores : public LetVisitor {
public:
    std::vector<Scaling> found;

    AddingStores(const std::string &sum, const std::string &state, Lets lets)
        : LetVisitor(std::move(lets)), sum(sum), state(state) {}

private:
    const std::string &sum, &state;

    using LetVisitor::visit;
    void visit(const Store *op) override {
        const auto adds = addition(op, sum, state);
        if (!adds) return;
        if (!is_const_zero(simplify(lets.in_full(op->index - adds->added)))) {
            throw BadInput("elements of " + sum + " have other places than those of " + state);
        }
        const Scaling one = {lets.in_full(op->index), adds->factor.defined() ? lets.in_full(adds->factor) : Expr()};
        for (const Scaling &other : found) {
            if (equal(other.index, one.index)) return;  // of the same stage in a repetition
        }
        found.push_back(one);
    }
};

class InState : public IRMutator {
public:
    InState(const std::string &sum, const std::string &state, const Stmt &scaling)
        : sum(sum), state(state), scaling(scaling) {}

private:
    const std::string &sum, &state;
    const Stmt &scaling;

    using IRMutator::visit;
    Stmt visit(const ProducerConsumer *op) override {
        const Stmt body = mutate(op->body);
        const bool is_it = op->is_producer && op->name == func_of_array(sum);
        return ProducerConsumer::make(op->name, op->is_producer, is_it ? Block::make(scaling, body) : body);
    }
    Stmt visit(const Store *op) override {
        if (addition(op, sum, state)) return Evaluate::make(0);
        if (op->name != sum) return IRMutator::visit(op);
        if (is_const_zero(op->value)) return Evaluate::make(0);
        return Store::make(state, mutate(op->value), op->index, op->param, op->predicate, op->alignment);
    }
    Expr visit(const Load *op) override {
        return op->name == sum ? load_float(state, op->index) : IRMutator::visit(op);
    }
    Stmt visit(const Free *op) override { return op->name == sum ? Evaluate::make(0) : Stmt(op); }
};

// Where some factor of a lane is not 1.
Stmt scaled(const std::string &state, const std::vector<Scaling> &all) {
    std::vector<Expr> factors;
    std::vector<Stmt> stores;
    Expr some = const_false();
    for (const Scaling &one : all) {
        if (!one.factor.defined()) continue;
        bool is_new = true;
        for (const Expr &factor : factors) is_new = is_new && !equal(factor, one.factor);
        if (is_new) {
            factors.push_back(one.factor);
            some = some || reinterpret<uint32_t>(one.factor) != reinterpret<uint32_t>(Expr(1.f));
        }
        stores.push_back(
            Store::make(state, load_float(state, one.index) * one.factor, one.index, Parameter(), const_true(), {}));
    }
    if (stores.empty()) return Evaluate::make(0);
    return IfThenElse::make(cuda::any_lane(cast<int32_t>(some)) != 0, Block::make(stores));
}

}  // namespace

Stmt SumInRegisters::visit(const For *op) {
    if (op->for_type == ForType::GPUBlock) {
        sum = name_of_array(op, sum);
        state = name_of_array(op, state);
    }
    return IRMutator::visit(op);
}

Stmt SumInRegisters::visit(const LetStmt *op) {
    lets.add(op->name, op->value);
    return IRMutator::visit(op);
}

Stmt SumInRegisters::visit(const Allocate *op) {
    if (op->name != sum) return IRMutator::visit(op);
    AddingStores adding(sum, state, lets);
    op->body.accept(&adding);
    if (adding.found.empty()) throw BadInput("nothing adds " + sum + " to " + state);
    found++;
    return InState(sum, state, scaled(state, adding.found)).mutate(op->body);
}

}  // namespace heed
