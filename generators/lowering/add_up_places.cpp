#include "generators/lowering/add_up_places.h"

#include <algorithm>
#include <optional>

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

std::string places_of(const std::string &input, const std::string &pair) { return input + "_places_of_" + pair; }

Expr stride(const std::string &input, const std::string &axis) {
    return cast<int64_t>(Variable::make(UInt(64), input + "_" + axis + "_stride"));
}

// A slot or a page times its stride, in the address of an element.
struct Term {
    bool is_page;
    std::string input;
    Expr key;
};

// `e`, where it is that of the arrays pair.0 and pair.1.
std::optional<Term> term_of(const Expr &e, const std::string &pair) {
    const auto *product = e.as<Mul>();
    if (!product) return {};
    for (const auto &[a, b] : {std::pair{product->a, product->b}, std::pair{product->b, product->a}}) {
        const auto *widened = a.as<Cast>(), *of_stride = b.as<Cast>();
        const auto *load = widened ? widened->value.as<Load>() : nullptr;
        const auto *name = of_stride ? of_stride->value.as<Variable>() : nullptr;
        if (!load || !name) continue;
        for (const bool is_page : {false, true}) {
            const std::string suffix = is_page ? "_page_stride" : "_slot_stride";
            if (load->name == pair + (is_page ? ".1" : ".0") && ends_with(name->name, suffix)) {
                return Term{is_page, name->name.substr(0, name->name.size() - suffix.size()), load->index};
            }
        }
    }
    return {};
}

void add_terms(const Expr &e, std::vector<Expr> *terms) {
    if (const auto *sum = e.as<Add>()) {
        add_terms(sum->a, terms);
        add_terms(sum->b, terms);
    } else {
        terms->push_back(e);
    }
}

// Fills the places of the inputs where the pages of keys are stored, after their slots.
class FillPlaces : public IRMutator {
public:
    FillPlaces(const std::string &pair, const std::vector<std::string> &inputs) : pair(pair), inputs(inputs) {}

    int stores = 0;  // of pages

private:
    using IRMutator::visit;
    const std::string &pair;
    const std::vector<std::string> &inputs;

    Stmt visit(const Store *op) override {
        if (op->name != pair + ".1") return op;
        stores++;
        const int lanes = op->value.type().lanes();
        const auto stored = [&](const std::string &array) {
            Expr value =
                Load::make(Int(32, lanes), array, op->index, Buffer<>(), Parameter(), op->predicate, op->alignment);
            return Cast::make(Int(64, lanes), value);
        };
        const auto all = [&](const Expr &e) { return lanes > 1 ? Broadcast::make(e, lanes) : e; };
        Stmt result = op;
        for (const std::string &input : inputs) {
            Expr place =
                stored(pair + ".0") * all(stride(input, "slot")) + stored(pair + ".1") * all(stride(input, "page"));
            result = Block::make(result, Store::make(places_of(input, pair), place, op->index, Parameter(),
                                                     op->predicate, op->alignment));
        }
        return result;
    }
};

}  // namespace

Expr AddUpPlaces::place_of(const std::string &input, const Expr &key) {
    if (std::find(inputs.begin(), inputs.end(), input) == inputs.end()) inputs.push_back(input);
    return Load::make(Int(64), places_of(input, pair), key, Buffer<>(), Parameter(), const_true(), ModulusRemainder());
}

Expr AddUpPlaces::visit(const Add *op) {
    if (pair.empty() || op->type != Int(64)) return IRMutator::visit(op);
    std::vector<Expr> terms;
    add_terms(op, &terms);
    Expr places;
    for (auto slot = terms.begin(); slot != terms.end(); ++slot) {
        const auto of_slot = term_of(*slot, pair);
        if (!of_slot || of_slot->is_page) continue;
        const auto page = std::find_if(terms.begin(), terms.end(), [&](const Expr &e) {
            const auto term = term_of(e, pair);
            return term && term->is_page && term->input == of_slot->input && equal(term->key, of_slot->key);
        });
        if (page == terms.end()) continue;
        places = place_of(of_slot->input, of_slot->key);
        *page = make_zero(Int(64));
        *slot = places;
        break;
    }
    if (!places.defined()) return IRMutator::visit(op);
    Expr sum;
    for (const Expr &term : terms) {
        if (is_const_zero(term)) continue;
        const Expr next = mutate(term);
        sum = sum.defined() ? sum + next : next;
    }
    return sum;
}

// The array of pages is allocated inside that of slots.
Stmt AddUpPlaces::visit(const Allocate *op) {
    const auto is_pages = [&](const std::string &array) { return op->name == array + ".1"; };
    const auto found = std::find_if(arrays.begin(), arrays.end(), is_pages);
    if (found == arrays.end()) return IRMutator::visit(op);
    const ScopedValue<std::string> of_pair(pair, *found);
    const ScopedValue<std::vector<std::string>> of_inputs(inputs, {});
    Stmt body = mutate(op->body);
    FillPlaces fill(pair, inputs);
    body = fill.mutate(body);
    if (!inputs.empty() && fill.stores == 0) throw CompileError("AddUpPlaces: nothing is stored in " + op->name);
    for (const std::string &input : inputs) {
        body = Allocate::make(places_of(input, pair), Int(64), op->memory_type, op->extents, op->condition, body);
    }
    return Allocate::make(op->name, op->type, op->memory_type, op->extents, op->condition, body, op->new_expr,
                          op->free_function, op->padding);
}

}  // namespace heed
