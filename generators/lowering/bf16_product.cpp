#include "generators/lowering/bf16_product.h"

#include <vector>

#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

struct Loop {
    std::string name;
    Expr min, extent;
};

// Wide sums instead of sums that are widened, none of which overflows.
class WideSums : public IRMutator {
    using IRMutator::visit;
    Expr visit(const Cast *op) override {
        const auto *sum = op->value.as<Add>();
        if (op->type != Int(64) || !sum || sum->type != Int(32)) return IRMutator::visit(op);
        return mutate(cast(op->type, sum->a)) + mutate(cast(op->type, sum->b));
    }
};

// The loops around one store, from the outermost; the store with all names of the nest resolved.
struct Nest {
    std::vector<Loop> loops;
    Expr index, value;
    std::string stored_to;

    bool read(const Stmt &s) {
        if (const auto *loop = s.as<For>()) {
            loops.push_back({loop->name, loop->min, loop->extent});
            return loop->for_type == ForType::Serial && read(loop->body);
        }
        if (const auto *let = s.as<LetStmt>()) return read(substitute(let->name, let->value, let->body));
        const auto *store = s.as<Store>();
        if (!store) return false;
        stored_to = store->name;
        index = substitute_in_all_lets(store->index);
        value = substitute_in_all_lets(store->value);
        return true;
    }

    Expr first(Expr of) const {
        for (const Loop &loop : loops) of = substitute(loop.name, loop.min, of);
        return of;
    }

    // What a step along a loop adds to an index, which is affine.
    Expr step(const Expr &of, const Loop &loop) const {
        return simplify(WideSums().mutate(cast<int64_t>(first(substitute(loop.name, loop.min + 1, of)) - first(of))));
    }
    bool steps_by(int bytes, const Load *load, const Loop &loop) const {
        const auto known = as_const_int(step(load->index, loop));
        return known && *known * load->type.bytes() == bytes;
    }
};

class FirstLoad : public IRVisitor {
public:
    const Load *found = nullptr;

private:
    using IRVisitor::visit;
    void visit(const Load *op) override {
        if (!found) found = op;
    }
};

// A pair is one word of a buffer of words or two neighbours of a buffer of bf16, the first of which is its address.
const Load *address(const Expr &pair) {
    FirstLoad first;
    pair.accept(&first);
    return first.found;
}

}  // namespace

std::optional<Bf16Product> recognised(const Stmt &update) {
    Nest nest;
    Bf16Product product;
    if (!nest.read(update)) return std::nullopt;
    const Expr b_pair = dot_operand(nest.value, 1);
    Expr a_pair = dot_operand(nest.value, 2);
    if (!b_pair.defined()) return std::nullopt;
    const Load *other_a = nullptr;
    if (const auto *either = a_pair.as<Select>()) {
        product.elsewhere = either->condition;
        other_a = address(either->true_value);
        a_pair = either->false_value;
    }
    const Load *a = address(a_pair), *b = address(b_pair);
    if (!a || !b || (product.elsewhere.defined() && !other_a)) return std::nullopt;

    // Pairs are one loop, or blocks of `tile_edge` pairs; m is one loop, or blocks of a known length, around it.
    const Loop *along_m = nullptr, *along_n = nullptr, *along_p = nullptr, *along_blocks = nullptr, *m_blocks = nullptr;
    for (const Loop &loop : nest.loops) {
        const Expr step = nest.step(nest.index, loop);
        const bool sums = is_const(step, 0), neighbours = nest.steps_by(4, a, loop);
        const Loop *&along = sums ? (neighbours ? along_p : along_blocks) : is_const(step, 1) ? along_n : along_m;
        if (along && (&along != &along_m || m_blocks)) return std::nullopt;
        if (along) m_blocks = along;
        along = &loop;
    }
    if (!along_m || !along_n || !along_p || !nest.steps_by(4, b, *along_n) || !nest.steps_by(0, b, *along_m)) {
        return std::nullopt;
    }
    for (const Load *load : {a, other_a ? other_a : a}) {
        if (!nest.steps_by(4, load, *along_p) || !nest.steps_by(0, load, *along_n)) return std::nullopt;
    }
    for (const Loop &loop : nest.loops) {
        if (other_a && expr_uses_var(product.elsewhere, loop.name)) return std::nullopt;
    }
    const auto m = as_const_int(along_m->extent), n = as_const_int(along_n->extent), p = as_const_int(along_p->extent);
    if (!m || !n || *m % tile_edge != 0 || *n % tile_edge != 0 || (p && *p % tile_edge != 0)) return std::nullopt;
    if (along_blocks && !(p && *p == tile_edge)) return std::nullopt;
    for (const Expr &of : {nest.index, a->index, b->index, other_a ? other_a->index : a->index}) {
        if (m_blocks && !is_const_zero(simplify(nest.step(of, *m_blocks) - nest.step(of, *along_m) * long_int(*m))))
            return std::nullopt;
    }
    product.m_block = static_cast<int>(*m);
    product.m = m_blocks ? m_blocks->extent * product.m_block : Expr(product.m_block);
    product.n = static_cast<int>(*n);
    product.pairs = along_blocks ? along_blocks->extent * tile_edge : along_p->extent;
    auto operand = [&](const std::string &name, const Expr &index, const Loop &rows, int bytes) {
        return TileOperand{name, cast<int64_t>(nest.first(index)) * long_int(bytes),
                           nest.step(index, rows) * long_int(bytes)};
    };
    const auto operand_a = [&](const Load *load) {
        const int bytes = load->type.bytes();
        TileOperand result = operand(load->name, load->index, *along_m, bytes);
        result.next_pairs =
            along_blocks ? nest.step(load->index, *along_blocks) * long_int(bytes) : long_int(tile_row_bytes);
        return result;
    };
    product.a = operand_a(a);
    if (other_a) product.other_a = operand_a(other_a);
    product.b = operand(b->name, b->index, *along_p, 4);
    product.c = operand(nest.stored_to, nest.index, *along_m, 4);
    product.b.next_pairs =
        along_blocks ? nest.step(b->index, *along_blocks) * long_int(4) : long_int(tile_edge) * product.b.stride;
    return product;
}

bool clears(const Stmt &loops, Bf16Product *product) {
    Nest nest;
    if (!nest.read(loops) || nest.stored_to != product->c.buffer) return false;
    if (is_const_zero(nest.value)) return true;
    const auto *load = nest.value.as<Load>();
    if (load == nullptr || !load->type.is_float() || nest.loops.size() != 2) return false;
    const Loop *along_m = nullptr, *along_n = nullptr;
    for (const Loop &loop : nest.loops) (is_const(nest.step(nest.index, loop), 1) ? along_n : along_m) = &loop;
    if (along_m == nullptr || along_n == nullptr || !nest.steps_by(4, load, *along_n)) return false;
    product->start = TileOperand{load->name, cast<int64_t>(nest.first(load->index)) * long_int(4),
                                 nest.step(load->index, *along_m) * long_int(4)};
    return true;
}

}  // namespace heed
