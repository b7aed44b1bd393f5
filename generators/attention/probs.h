#pragma once
// Attention scores or probabilities of some queries of a head, for looking into a model: what heed_attention_probs
// writes. The products q . k come from a kernel of attention_scores.

#include <functional>

#include "generators/attention/logits.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

// A score of a key in a row of queries, wherever its parts are.
struct ProbsScore {
    using Expr = Halide::Expr;
    Expr product, mode, key, row;
    Expr kv_len, visible_begin, visible_end, position_offset;  // of the sequence
    Expr mask, mask_form, bias, bias_form;                     // elements, read where the forms say so
    Expr bias_16 = {};                                         // as a float; undefined in f32
    Expr user_visible = {};                                    // a score function's; undefined: there is none
    Expr in_range = {};  // whether the row sees the key by its position; undefined: by the numbers above

    // changes: without what the members above say.
    struct Logit {
        LogitChanges changes;
        ChangedLogit changed;
        Expr visible;
    };
    Logit logit(LogitChanges changes, LogitUnits units = LogitUnits::natural) const;
    // What the bias and ALiBi add to a logit in natural units; minus infinity where the mask or the bias hides the key.
    Expr added(const LogitChanges &changes) const;
    // In natural units, by mode: from masked_scores on minus infinity where not visible.
    Expr value(const LogitChanges &changes) const;

private:
    Expr bias_or_none() const;
};

// What the weights of a row are made of. Its keys are gone through in blocks, of which each of some lanes has one.
struct ProbsRows {
    using Expr = Halide::Expr;
    Halide::Var u{"u"};
    Halide::RDom over_blocks, over_lanes;
    Halide::Func lane_max{"lane_max"};  // (u, row): of every lanes-th visible score
    Halide::Func row_max{"row_max"};    // (row)
    Halide::Func lane_sum{"lane_sum"};  // (u, row): of every lanes-th weight
    Halide::Func row_sum{"row_sum"};    // (row): without the sink
    Halide::Func factor{"factor"};      // (row): of the weights

    ProbsRows(const Halide::RDom &over_blocks, int lanes, std::vector<Halide::Var> row)
        : over_blocks(over_blocks), over_lanes(0, lanes, "over_lanes"), row(std::move(row)) {}
    // score, weight: of lane u and a block; the weight is 0 where there is no key.
    void define_lane_max(const Expr &score);
    void define_lane_sum(const Expr &weight);
    void define_row_max();  // of the lanes one after the other, as row_sum
    void define_row_sum();
    void define_factor(const Expr &sink);
    // Relative to row_max, which is never minus infinity: 0 of a score that is.
    Expr weight(const Expr &score, const std::vector<Expr> &of_row) const;
    // What the call wants of a key.
    Expr result(const Expr &mode, const Expr &score, const Expr &weight, const std::vector<Expr> &of_row) const;

private:
    const std::vector<Halide::Var> row;

    std::vector<Expr> at(const Expr &lane) const;
};

// The rows of a result, in whole blocks of keys: 2 vectors of AVX-512 or 4 of AVX2, whose maxima and sums do not
// wait for one another, and are joined in halves.
struct ProbsLines : ProbsRows {
    static constexpr int lanes = probs_block;
    Halide::Var i{"i"};                 // a row
    Halide::RDom keys, after_keys;      // of a row: those that there are, and the rest of the last block
    Halide::Func scores{"row_scores"};  // (j, i): minus infinity after the keys
    Halide::Func weights{"weights"};    // (j, i)
    std::vector<Halide::Func> halves_of_max = {}, halves_of_sum = {};  // (u, i): of 16, 8, 4 lanes

    explicit ProbsLines(const Expr &width);
    // What the call wants of key j of `row`. score(key, i).
    using Score = std::function<Expr(const Expr &key, const Expr &i)>;
    Expr define(const Halide::Var &j, const Expr &row, const Score &score, const Expr &mode, const Expr &sink);
    // What is made of the scores and weights of a row, in registers.
    std::vector<Halide::Func> of_row() const;

private:
    using Operator = Expr (*)(const Expr &, const Expr &);
    // What `by_lane` has of a row, in a tree of halves.
    Expr of_lanes(const Halide::Func &by_lane, Operator join, std::vector<Halide::Func> &halves) const;
};

}  // namespace heed
