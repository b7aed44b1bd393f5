#pragma once
// One tile of the gradients of attention in bf16, on matrix tiles (AMX, bf16_tiles.h) or dot products (bf16_dots.h):
// the steps of attention_backward.h as five products, c(n, m) = sum over pairs p of b(n, p) a(p, m), with weights and
// gradients rounded to bf16:
//
//   scores (i, j)        of q_words (i, p) and k_rows (p, j)          keys are rows: what follows is transposed for
//   weight_grads (i, j)  of dout_words (i, p) and v_rows (p, j)       free, as pairs of queries side by side
//   dv (c, j, x)         of dout_pairs (c, pair of queries, x) and weights
//   dk (c, j, x)         of q_pairs (c, pair of queries, x) and score_grads
//   dq (i, c, x)         of score_grads, by pairs of keys, and k_columns (pair of keys, c, x)
//
// A word is two bf16, the first in its lower half. Elements are in chunks of 32, zeros after the last. In q_pairs,
// dout_pairs and k_columns NaN and infinities are zeros: a tile multiplies every query with every key, seen or not;
// the caller adds what they give.

#include "generators/attention/backward_logits.h"

namespace heed {

struct BackwardTilesBlock {
    static constexpr int queries = 64, keys = 64, chunk = backward_chunk;
};

struct AttentionBackwardTilesKernel : BackwardLogits {
    using Block = BackwardTilesBlock;

    Halide::ImageParam q_words{Halide::Int(32), 2, "q_words"}, dout_words{Halide::Int(32), 2, "dout_words"};
    Halide::ImageParam q_pairs{Halide::Int(32), 3, "q_pairs"}, dout_pairs{Halide::Int(32), 3, "dout_pairs"};
    Halide::ImageParam k_rows{Halide::Int(32), 2, "k_rows"}, v_rows{Halide::Int(32), 2, "v_rows"};
    Halide::ImageParam k_columns{Halide::Int(32), 3, "k_columns"};
    Halide::ImageParam dq_before{Halide::Float(32), 3, "dq_before"}, dk_before{Halide::Float(32), 3, "dk_before"},
        dv_before{Halide::Float(32), 3, "dv_before"};  // may be dq, dk and dv themselves

    Halide::Var c{"c"}, x{"x"}, p{"p"};
    Halide::Func scores{"scores"}, weight_grads{"weight_grads"};  // (i, j)
    Halide::Func grads{"grads"};            // (i, j): weights and score_grads as bf16, logit_grads
    Halide::Func grad_words{"grad_words"};  // (i, p): score_grads of two keys
    Halide::Func weight_pairs{"weight_pairs"}, grad_pairs{"grad_pairs"};  // (p, j): weights, score_grads of two queries
    Halide::Func dq_tile{"dq_tile"}, dk_tile{"dk_tile"}, dv_tile{"dv_tile"};  // (i, c, x), (c, j, x), (c, j, x)
    Halide::Func dq{"dq"}, dk{"dk"}, dv{"dv"};

    explicit AttentionBackwardTilesKernel(const ScoreMod &score_mod);

    HEED_ARGUMENT_FUNCTIONS(HEED_ATTENTION_BACKWARD_BF16)
    Halide::Pipeline pipeline() const { return Halide::Pipeline({grads, dq, dk, dv}); }

private:
    void state_buffer_contract();
};

}  // namespace heed
