#include "generators/lowering/cuda/product_nest.h"

#include "generators/common/device_memory.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// c + select(x, 0, y) for select(x, c, c + y), of which Halide makes one or the other.
Expr in_sum(const Expr &value) {
    const auto *choice = value.as<Select>();
    const auto *sum = choice != nullptr ? choice->false_value.as<Add>() : nullptr;
    if (sum == nullptr) return value;
    const bool is_first = equal(sum->a, choice->true_value);
    if (!is_first && !equal(sum->b, choice->true_value)) return value;
    const Expr added = is_first ? sum->b : sum->a;
    return Add::make(choice->true_value, Select::make(choice->condition, make_zero(added.type()), added));
}

const Load *load_in(const Expr &e) {
    struct Find : IRVisitor {
        const Load *load = nullptr;
        using IRVisitor::visit;
        void visit(const Load *op) override { load = op; }
    } find;
    e.accept(&find);
    return find.load;
}

bool is_stored_as(ElementType type, const Expr &e, const Load *load) {
    return load->type == stored_type(type) && equal(simplify(e), simplify(to_float(type, load)));
}
bool is_rounded_to(ElementType type, const Expr &e, const Load *load) {
    return load->type == Float(32) && equal(e, rounded_on_device(type, load));
}

}  // namespace

// The elements that are made floats.
bool ProductNest::read_product(const Mul *product, const Load **x, const Load **y) {
    *x = load_in(product->a);
    *y = load_in(product->b);
    if (*x == nullptr || *y == nullptr) return false;
    for (const ElementType of_a : {ElementType::f16, ElementType::bf16}) {
        if (!is_stored_as(of_a, product->a, *x) && !is_rounded_to(of_a, product->a, *x)) continue;
        type = of_a;
        has_codes = is_stored_as(ElementType::i8, product->b, *y);
        return has_codes || is_stored_as(type, product->b, *y);
    }
    return false;
}

bool ProductNest::read(Stmt s, Lets lets, const std::set<std::string> &shared) {
    std::map<std::string, Expr> elements;  // that are read before the sum
    Lets of_nest;
    for (;;) {
        if (const auto *loop = s.as<For>()) {
            if (loop->for_type != ForType::Serial) return false;
            loops.push_back(loop);
            s = loop->body;
        } else if (const auto *let = s.as<LetStmt>()) {
            lets.add(let->name, let->value);
            of_nest.add(let->name, let->value);
            if (let->value.as<Load>() != nullptr) elements[let->name] = let->value;
            s = let->body;
        } else if (const auto *branch = s.as<IfThenElse>()) {
            const auto *of_terms = branch->condition.as<Call>();
            if (of_terms == nullptr || of_terms->name != "heed_of_terms" || condition.defined()) return false;
            condition = of_nest.in_full(of_terms->args[0]);
            s = branch->then_case;
        } else {
            break;
        }
    }
    store = s.as<Store>();
    if (store == nullptr) return false;
    const Expr value = in_sum(substitute(elements, substitute_in_all_lets(store->value)));
    const auto *sum = value.as<Add>();
    if (sum == nullptr) return false;
    const bool old_first = sum->a.as<Load>() != nullptr;
    const auto *old = (old_first ? sum->a : sum->b).as<Load>();
    const Expr added = old_first ? sum->b : sum->a;
    const auto *choice = added.as<Select>();
    const auto *product = (choice != nullptr ? choice->false_value : added).as<Mul>();
    if (old == nullptr || product == nullptr || old->name != store->name || !equal(old->index, store->index)) {
        return false;
    }
    const Load *x = nullptr, *y = nullptr;
    if (!read_product(product, &x, &y) || shared.count(y->name) == 0) return false;
    if (shared.count(x->name) == 0) a_in_registers = x->type;
    leaves_out = choice != nullptr;
    if (leaves_out) {
        const Expr is_left_out = reinterpret<uint32_t>(Expr(x)) == Expr(left_out_bits);
        const bool is_it = equal(simplify(choice->condition), simplify(is_left_out));
        const bool is_of_numbers = a_in_registers == Float(32) && !has_codes;
        if (!is_it || !is_const_zero(choice->true_value) || !is_of_numbers) return false;
    }
    a = x->name;
    b = y->name;
    c_index = lets.in_full(store->index);
    a_index = lets.in_full(x->index);
    b_index = lets.in_full(y->index);
    return true;
}

}  // namespace heed
