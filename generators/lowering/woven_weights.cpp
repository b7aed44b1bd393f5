#include "generators/lowering/woven_weights.h"

#include "generators/common/serial_loop.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

namespace {

// The stores of a nest of lets, each with all that it needs.
void split(const Stmt &stmt, std::vector<std::pair<std::string, Expr>> lets, std::vector<Stmt> *stores) {
    if (const auto *let = stmt.as<LetStmt>()) {
        lets.emplace_back(let->name, let->value);
        split(let->body, lets, stores);
    } else if (const auto *block = stmt.as<Block>()) {
        split(block->first, lets, stores);
        split(block->rest, lets, stores);
    } else if (const auto *store = stmt.as<Store>()) {
        Expr value = store->value;
        for (auto named = lets.rbegin(); named != lets.rend(); named++) {
            if (expr_uses_var(value, named->first)) value = Let::make(named->first, named->second, value);
        }
        stores->push_back(
            Store::make(store->name, value, store->index, store->param, store->predicate, store->alignment));
    } else if (!is_no_op(stmt)) {
        throw CompileError("what is made of a key is more than stores");
    }
}

}  // namespace

LargestWeights::LargestWeights(std::string weights)
    : weights(std::move(weights)), largest(unique_name("largest_weight")) {}

Stmt LargestWeights::set(const Expr &value) const {
    std::vector<Stmt> all;
    for (int row = 0; row < rows; row++) {
        all.push_back(Store::make(largest, Broadcast::make(value, lanes), place(row), Parameter(), const_true(lanes),
                                  ModulusRemainder()));
    }
    return Block::make(all);
}

Expr LargestWeights::some_at_least(const Expr &value) const {
    Expr all = at(0);
    for (int row = 1; row < rows; row++) all = max(all, at(row));
    return VectorReduce::make(VectorReduce::Or, all >= Broadcast::make(value, lanes), 1);
}

Stmt LargestWeights::lives_in(const Stmt &body) const {
    return Allocate::make(largest, UInt(16), MemoryType::Register, {rows * lanes}, const_true(), body);
}

Expr LargestWeights::place(int row) const { return Ramp::make(row * lanes, 1, lanes); }

Expr LargestWeights::at(int row) const {
    return Load::make(UInt(16, lanes), largest, place(row), Buffer<>(), Parameter(), const_true(lanes),
                      ModulusRemainder());
}

Stmt LargestWeights::visit(const Store *op) {
    if (op->name != weights) return IRMutator::visit(op);
    const int row = rows++;
    lanes = 2 * op->value.type().lanes();
    const Expr stored =
        Load::make(op->value.type(), weights, op->index, Buffer<>(), Parameter(), op->predicate, op->alignment);
    const Expr both = max(at(row), reinterpret(UInt(16, lanes), stored));
    return Block::make(op, Store::make(largest, both, place(row), Parameter(), const_true(lanes), ModulusRemainder()));
}

WovenWeights::WovenWeights(const Loop &weights, const Loop &sums, const Loop &exact_sums, LargestWeights *largest,
                           IRMutator *reads)
    : weights(weights.of), sums(sums.of), exact_sums(exact_sums.of),
      row_vectors(static_cast<int>(stores_to(weights.array, weights.of.loop->body).size())) {
    split(reads->mutate(largest->mutate(weights.of.loop->body)), {}, &of_rows);
    split(reads->mutate(exact_sums.of.loop->body), {}, &of_exact_sums);
    for (const Store *store : stores_to(sums.array, sums.of.loop->body)) of_sums.emplace_back(store);
    parts = static_cast<int>(of_sums.size()) / row_vectors;
}

int WovenWeights::num_pairs() const { return constant(weights.loop->extent); }

Stmt WovenWeights::vectors(const Expr &first_pair, int first, int end, bool exactly) const {
    std::vector<Stmt> all{Evaluate::make(0)};
    for (int vector = first; vector < end; vector++) {
        const int pair = vector / row_vectors, row = vector % row_vectors;
        const Expr of_step = simplify(first_pair + pair);
        for (int i = 0; i < 2; i++) all.push_back(substitute(weights.loop->name, of_step, of_rows[2 * row + i]));
        if (exactly) all.push_back(exactly_added(of_step, row));
        all.push_back(substitute(sums.loop->name, simplify(first_pair / parts + pair / parts),
                                 of_sums[pair % parts * row_vectors + row]));
    }
    return Block::make(all);
}

Stmt WovenWeights::pairs(const Expr &first_pair, const Expr &count, bool exactly) const {
    std::vector<Stmt> all = of_rows;
    const Expr pair = Variable::make(Int(32), weights.loop->name);
    for (int row = 0; exactly && row < row_vectors; row++) all.push_back(exactly_added(pair, row));
    return serial_loop(weights.loop->name, first_pair, count, Block::make(all));
}

Stmt WovenWeights::sums_of(const Expr &first_pair, int count) const {
    return part_of(sums.loop, simplify(first_pair / parts), count / parts);
}

// The keys of a pair, of a vector of rows.
Stmt WovenWeights::exactly_added(const Expr &pair, int row) const {
    const auto of_key = [&](int i) {
        return substitute(exact_sums.loop->name, simplify(2 * pair + i), of_exact_sums.at(row));
    };
    return Block::make(of_key(0), of_key(1));
}

}  // namespace heed
