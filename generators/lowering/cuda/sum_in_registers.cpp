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

// state = state * factor + sum[added]
struct Addition {
    Expr factor, added;
};

std::optional<Addition> addition(const Store *op, const std::string &sum, const std::string &state) {
    const auto *add = op->name == state ? op->value.as<Add>() : nullptr;
    if (add == nullptr) return {};
    const bool product_first = add->a.as<Mul>() != nullptr;
    const auto *product = (product_first ? add->a : add->b).as<Mul>();
    const auto *of_sum = (product_first ? add->b : add->a).as<Load>();
    if (product == nullptr || of_sum == nullptr || of_sum->name != sum) return {};
    const auto *first = product->a.as<Load>();
    const bool state_first = first != nullptr && first->name == state;
    return Addition{state_first ? product->b : product->a, of_sum->index};
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
        const Scaling one = {lets.in_full(op->index), lets.in_full(adds->factor)};
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
        const Stmt s = IRMutator::visit(op);
        return op->is_producer && op->name == func_of_array(sum) ? Block::make(scaling, s) : s;
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
        bool is_new = true;
        for (const Expr &factor : factors) is_new = is_new && !equal(factor, one.factor);
        if (is_new) {
            factors.push_back(one.factor);
            some = some || reinterpret<uint32_t>(one.factor) != reinterpret<uint32_t>(Expr(1.f));
        }
        stores.push_back(
            Store::make(state, load_float(state, one.index) * one.factor, one.index, Parameter(), const_true(), {}));
    }
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
