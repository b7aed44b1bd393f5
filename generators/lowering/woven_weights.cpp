#include "generators/lowering/woven_weights.h"

namespace heed {

using namespace Halide;
using namespace Halide::Internal;

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

WovenWeights::WovenWeights(const KeyLoop &weights, const KeyLoop &sums, const std::string &weights_array,
                           const std::string &sums_array, LargestWeights *largest, IRMutator *reads)
    : weights(weights), sums(sums), row_vectors(static_cast<int>(stores_to(weights_array, weights.loop->body).size())) {
    split(reads->mutate(largest->mutate(weights.loop->body)), {});
    for (const Store *store : stores_to(sums_array, sums.loop->body)) of_sums.emplace_back(store);
    parts = static_cast<int>(of_sums.size()) / row_vectors;
}

int WovenWeights::num_pairs() const { return constant(weights.loop->extent); }

Stmt WovenWeights::vectors(const Expr &first_pair, int first, int end) const {
    std::vector<Stmt> all{Evaluate::make(0)};
    for (int vector = first; vector < end; vector++) {
        const int pair = vector / row_vectors, row = vector % row_vectors;
        for (int i = 0; i < 2; i++) {
            all.push_back(substitute(weights.loop->name, simplify(first_pair + pair), of_rows[2 * row + i]));
        }
        all.push_back(substitute(sums.loop->name, simplify(first_pair / parts + pair / parts),
                                 of_sums[pair % parts * row_vectors + row]));
    }
    return Block::make(all);
}

Stmt WovenWeights::pairs(const Expr &first_pair, const Expr &count) const {
    return For::make(weights.loop->name, first_pair, count, ForType::Serial, Partition::Never, DeviceAPI::None,
                     Block::make(of_rows));
}

Stmt WovenWeights::sums_of(const Expr &first_pair, int count) const {
    return part_of(sums.loop, simplify(first_pair / parts), count / parts);
}

// The stores of a nest of lets, each with all that it needs.
void WovenWeights::split(const Stmt &stmt, std::vector<std::pair<std::string, Expr>> lets) {
    if (const auto *let = stmt.as<LetStmt>()) {
        lets.emplace_back(let->name, let->value);
        split(let->body, lets);
    } else if (const auto *block = stmt.as<Block>()) {
        split(block->first, lets);
        split(block->rest, lets);
    } else if (const auto *store = stmt.as<Store>()) {
        Expr value = store->value;
        for (auto named = lets.rbegin(); named != lets.rend(); named++) {
            if (expr_uses_var(value, named->first)) value = Let::make(named->first, named->second, value);
        }
        of_rows.push_back(
            Store::make(store->name, value, store->index, store->param, store->predicate, store->alignment));
    } else if (!is_no_op(stmt)) {
        throw CompileError("weights of a pair are more than stores");
    }
}

}  // namespace heed
