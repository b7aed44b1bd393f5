#pragma once
// The weights of a block of keys, and their sums, in pieces that a pass puts between other instructions.

#include <string>
#include <utility>
#include <vector>

#include "Halide.h"
#include "generators/lowering/step_stages.h"

namespace heed {

// The largest halves of the words that are stored, by vectors of rows.
class LargestWeights : public Halide::Internal::IRMutator {
public:
    explicit LargestWeights(std::string weights);

    Halide::Internal::Stmt set(const Halide::Expr &value) const;
    Halide::Expr some_at_least(const Halide::Expr &value) const;
    Halide::Internal::Stmt lives_in(const Halide::Internal::Stmt &body) const;

private:
    using IRMutator::visit;
    const std::string weights, largest;
    int rows = 0, lanes = 0;

    Halide::Expr place(int row) const;
    Halide::Expr at(int row) const;
    Halide::Internal::Stmt visit(const Halide::Internal::Store *op) override;
};

// A loop over pairs of keys that stores their weights by vectors of rows, one that adds the weights of several pairs to
// as many sums, in their order, and one that adds to a sum what it computes of each key.
class WovenWeights {
public:
    struct Loop {
        KeyLoop of;
        std::string array;  // that it stores to
    };
    // reads: how logits are read.
    WovenWeights(const Loop &weights, const Loop &sums, const Loop &exact_sums, LargestWeights *largest,
                 Halide::Internal::IRMutator *reads);

    int num_pairs() const;
    int vectors_of_pair() const { return row_vectors; }

    // Makes the vectors [first, end) of the pairs from first_pair on, and adds them to the sums, if exactly to the
    // exact ones too. first_pair is a multiple of the number of sums.
    Halide::Internal::Stmt vectors(const Halide::Expr &first_pair, int first, int end, bool exactly) const;
    // `count` pairs as a loop, not added but exactly.
    Halide::Internal::Stmt pairs(const Halide::Expr &first_pair, const Halide::Expr &count, bool exactly) const;
    Halide::Internal::Stmt sums_of(const Halide::Expr &first_pair, int count) const;

private:
    const KeyLoop weights, sums, exact_sums;
    const int row_vectors;
    std::vector<Halide::Internal::Stmt> of_rows;  // of a pair: the weights of a vector of rows, then the largest
    std::vector<Halide::Internal::Stmt> of_sums;
    std::vector<Halide::Internal::Stmt> of_exact_sums;  // of a key
    int parts = 0;

    Halide::Internal::Stmt exactly_added(const Halide::Expr &pair, int row) const;
};

}  // namespace heed
