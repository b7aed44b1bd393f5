#pragma once
// Attention scores or probabilities of some queries of a head, for looking into a model: what heed_attention_probs
// writes. The products q . k come from a kernel of attention_scores.

#include <functional>

#include "generators/attention/logits.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(AttentionProbsArguments, HEED_ATTENTION_PROBS)

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
    Expr factor_with(const Expr &sink) const;  // of row_max and row_sum
    // Relative to row_max, which is never minus infinity: 0 of a score that is.
    Expr weight(const Expr &score, const std::vector<Expr> &of_row) const;
    Expr logarithm_of_weight(const Expr &score, const std::vector<Expr> &of_row) const;  // base 2
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
    Halide::Var i{"i"};                      // a row
    Halide::RDom keys, after_keys;           // of a row: those that there are, and the rest of the last block
    Halide::RDom whole_blocks, last_blocks;  // those whose keys all count, and the others
    Halide::RDom in_whole, in_last;          // their keys
    Halide::Func scores{"row_scores"};       // (j, i): minus infinity after the keys
    Halide::Func weights{"weights"};         // (j, i)
    std::vector<Halide::Func> halves_of_max = {}, halves_of_sum = {};  // (u, i): of 16, 8, 4 lanes
    const bool for_bf16;                                               // weights are as weight_for_bf16() has them

    // num_keys: those that count, of which `width` has all.
    ProbsLines(const Expr &width, const Expr &num_keys, bool for_bf16);
    // What the call wants of key j of row i, whose score is score(j).
    Expr define(const Halide::Var &j, const std::function<Expr(const Expr &)> &score, const Expr &mode,
                const Expr &sink);
    // The probability of key j of row i, which sees num_keys keys, up to the last block; scores are computed where they
    // are read.
    Expr define_probability(const Halide::Var &j, const Expr &num_keys, const std::function<Expr(const Expr &)> &score,
                            const Expr &sink);
    Expr probability(const Expr &key) const;
    // What is made of the scores and weights of a row, in registers.
    std::vector<Halide::Func> of_row() const;

private:
    using Operator = Expr (*)(const Expr &, const Expr &);
    // What `by_lane` has of a row, in a tree of halves.
    Expr of_lanes(const Halide::Func &by_lane, Operator join, std::vector<Halide::Func> &halves) const;
    Expr weight_of(const Expr &score) const;
    void define_row_of_max();                         // from lane_max
    void define_factor_of_weights(const Expr &sink);  // and what is between weights and factor
};

struct AttentionProbsKernel : AttentionProbsArguments {
    Halide::Var j{"j"}, i{"i"};
    Halide::Func scores{"scores"};      // (j, i)
    Halide::Func probs{"probs"};        // (j, i)
    Halide::Func probs_16{"probs_16"};  // (j, i): in dtype, where that is not f32
    const bool for_bf16;                // probs_16 is bf16, and made with fewer instructions
    ProbsLines lines, lines_16;         // of probs and of probs_16
    ProbsLines plain;                   // of the one in dtype, where makes_plain()

    // has_unsigned_words: the target makes them of floats in an instruction.
    AttentionProbsKernel(ElementType dtype, bool has_unsigned_words);

    Halide::Pipeline pipeline() const;
    // The result in dtype.
    Halide::Func &own() { return types.own == ElementType::f32 ? probs : probs_16; }
    // Without probs_16 in f32.
    std::vector<OutputType> output_types() const;

    // What most calls are: conditions on which loads and arithmetic of the scores fall away.
    Halide::Expr is_plain() const, has_mask_only() const, has_bias_only() const, makes_probabilities() const;
    // Probabilities of plain logits of rows that see all keys.
    Halide::Expr makes_plain() const;

private:
    Halide::Expr width() const { return mask.dim(0).extent(); }
    Halide::Expr num_keys() const { return Halide::min(kv_len, width()); }  // that a row may see
    Halide::Expr score(const Halide::Expr &key) const;
    Halide::Expr keeps_logits() const;  // no cap, no growth of the temperature, no ALiBi
    void state_buffer_contract();
};

}  // namespace heed
