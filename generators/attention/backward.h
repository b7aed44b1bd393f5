#pragma once
// One tile of the gradients of attention: a block of query rows against a block of keys (Dao, arXiv 2307.08691, section
// 3.2). Everything is float; the runtime makes the operands and loops over the tiles. Rows of q, dout, k and of the
// gradients are in chunks of 32 elements, (element of the chunk, row, chunk), zeros after the last element: all
// strides are constants then, for any head_dim.
//
//   weights = exp(logits - lse)            what the softmax gave, recomputed; after dropout
//   logit_grads = weights * (dout v^T - delta)
//   dv += weights^T dout,   dk += score_grads^T q,   dq += score_grads k
//
// logit_grads are with respect to the logits, as bias and ALiBi left them; score_grads to scale * q k^T. The factor
// `scale` of dq and dk is left to the end.

#include "generators/attention/backward_logits.h"

namespace heed {

// The block of a tile, and the register tile of its products: rows x columns accumulators. A tile may have fewer
// queries and keys than the block: what it writes has whole register tiles, of at most 12 rows and a chunk of columns,
// which all others divide.
struct BackwardTile {
    static constexpr int queries = 48, keys = 96, chunk = backward_chunk;
    int rows, columns;
};

struct AttentionBackwardKernel : BackwardLogits {
    // sum(c, r) = left(r, over) * right(c, over) in registers.
    struct Product {
        Halide::RDom over;
        Halide::Func sum;

        explicit Product(const std::string &name) : sum(name) {}
    };

    BackwardTile tile;
    Halide::ImageParam q{Halide::Float(32), 3, "q"};              // (c, i, x): element c of chunk x
    Halide::ImageParam dout{Halide::Float(32), 3, "dout"};        // (c, i, x), of v's elements
    Halide::ImageParam k{Halide::Float(32), 3, "k"};              // (c, j, x)
    Halide::ImageParam k_lanes{Halide::Float(32), 3, "k_lanes"};  // (c, d, x): key c of chunk x
    Halide::ImageParam v_lanes{Halide::Float(32), 3, "v_lanes"};  // (c, d of v, x)
    Halide::ImageParam dq_before{Halide::Float(32), 3, "dq_before"}, dk_before{Halide::Float(32), 3, "dk_before"},
        dv_before{Halide::Float(32), 3, "dv_before"};                   // may be dq, dk and dv themselves
    Halide::Param<int32_t> num_rows{"num_rows"}, num_keys{"num_keys"};  // that the sums go over
    Halide::Param<int32_t> hides_nonfinite{
        "hides_nonfinite"};  // a key or row is NaN or infinite: it must not reach who cannot see it

    Halide::Var c{"c"}, x{"x"};
    Product dots{"dots"}, weight_dots{"weight_dots"};                    // (j, i): q k^T, dout v^T
    Halide::Func scores{"scores"}, weight_grads{"weight_grads"};         // (j, i): the same, in memory
    Halide::Func grads{"grads"};                                         // (j, i): weights, score_grads, logit_grads
    Product dq_tile{"dq_tile"}, dk_tile{"dk_tile"}, dv_tile{"dv_tile"};  // (c, i, x), (c, j, x), (c, j, x)
    Halide::Func dq{"dq"}, dk{"dk"}, dv{"dv"};

    AttentionBackwardKernel(const BackwardTile &tile, const ScoreMod &score_mod);

    HEED_ARGUMENT_FUNCTIONS(HEED_ATTENTION_BACKWARD)
    Halide::Pipeline pipeline() const { return Halide::Pipeline({grads, dq, dk, dv}); }

private:
    void state_buffer_contract();
};

}  // namespace heed
