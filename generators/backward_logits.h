#pragma once
// The elementwise part of a tile of attention's gradients: from scores and the gradients of weights to those of logits.

#include "dropout.h"
#include "score_mod.h"

namespace heed {

// How much of the logits' path a tile takes: plain tiles see all keys and change no logit; positioned ones change none,
// but positions say who sees what.
enum BackwardForm { backward_plain, backward_positioned, backward_scored, backward_dropped };

// A block of query rows i against a block of keys j. Tiles are in the order of `at`.
struct BackwardLogits {
    Halide::Var i{"i"}, j{"j"};
    const std::vector<Halide::Var> at;

    Halide::ImageParam lse{Halide::Float(32), 1, "lse"};      // (i)
    Halide::ImageParam delta{Halide::Float(32), 1, "delta"};  // (i): dout . out
    Halide::ImageParam mask{Halide::UInt(8), 2, "mask"};
    Halide::ImageParam bias{Halide::Float(32), 2, "bias"};
    Halide::Param<int32_t> form{"form"};
    Halide::Param<int32_t> first_query{"first_query"}, first_key{"first_key"}, kv_len{"kv_len"};
    Halide::Param<int32_t> visible_begin{"visible_begin"}, visible_end{"visible_end"},
        position_offset{"position_offset"};
    Halide::Param<int32_t> mask_form{"mask_form"}, has_bias{"has_bias"}, alibi_symmetric{"alibi_symmetric"};
    Halide::Param<float> scale{"scale"}, softcap{"softcap"}, slope{"slope"}, dropout_scale{"dropout_scale"};
    Halide::Param<uint64_t> dropout_seed{"dropout_seed"}, dropout_offset{"dropout_offset"},
        dropout_threshold{"dropout_threshold"};
    Halide::Param<uint64_t> first_element{"first_element"}, row_elements{"row_elements"};  // of the dropout mask

    Halide::Func weights{"weights"}, dropout{"dropout"};  // before dropout; its factor

    enum class Order { keys_first, queries_first };
    explicit BackwardLogits(Order order)
        : at(order == Order::keys_first ? std::vector<Halide::Var>{j, i} : std::vector<Halide::Var>{i, j}) {}

    struct Gradients {
        Halide::Expr weight, score, logit;  // the weight behind dropout
    };
    // Once, of q k^T and dout v^T at (i, j).
    Gradients gradients(const Halide::Expr &score, const Halide::Expr &weight_grad);

    // From lse to row_elements, but for what belongs to the operands.
    std::vector<Halide::Argument> row_arguments() const { return {lse, delta, mask, bias}; }
    std::vector<Halide::Argument> scalar_arguments() const;
};

}  // namespace heed
