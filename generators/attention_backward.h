#pragma once
// One tile of the gradients of attention: a block of query rows against a block of keys (Dao, arXiv 2307.08691, section
// 3.2). Everything is float; the runtime makes the operands and loops over the tiles. Rows of q, dout, k and of the
// gradients lie in chunks of 32 elements, (element of the chunk, row, chunk), zeros behind the last element: all
// strides are constants then, for any head_dim.
//
//   weights = exp(logits - lse)            what the softmax gave, recomputed; after dropout
//   logit_grads = weights * (dout v^T - delta)
//   dv += weights^T dout,   dk += score_grads^T q,   dq += score_grads k
//
// logit_grads are with respect to the logits, as bias and ALiBi left them; score_grads to scale * q k^T. The factor
// `scale` of dq and dk is left to the end.

#include "dropout.h"
#include "score_mod.h"

namespace heed {

// The block of a tile, and the register tile of its products: rows x columns accumulators; columns divide a chunk.
struct BackwardTile {
    static constexpr int queries = 48, keys = 96, chunk = 32;
    int rows, columns;
};

// How much of the logits' path a tile takes: plain tiles see all keys and change no logit.
enum BackwardForm { backward_plain, backward_scored, backward_dropped };

struct AttentionBackwardKernel {
    // sum(c, r) = left(r, over) * right(c, over) in registers.
    struct Product {
        Halide::RDom over;
        Halide::Func sum;

        explicit Product(const std::string &name) : sum(name) {}
    };

    BackwardTile tile;
    Halide::ImageParam q{Halide::Float(32), 3, "q"};          // (c, i, x): element c of chunk x
    Halide::ImageParam dout{Halide::Float(32), 3, "dout"};    // (c, i, x), of v's elements
    Halide::ImageParam k{Halide::Float(32), 3, "k"};          // (c, j, x)
    Halide::ImageParam k_lanes{Halide::Float(32), 2, "kt"};   // (j, d)
    Halide::ImageParam v_lanes{Halide::Float(32), 2, "vt"};   // (j, d of v)
    Halide::ImageParam lse{Halide::Float(32), 1, "lse"};      // (i)
    Halide::ImageParam delta{Halide::Float(32), 1, "delta"};  // (i): dout . out
    Halide::ImageParam mask{Halide::UInt(8), 2, "mask"};      // (j, i)
    Halide::ImageParam bias{Halide::Float(32), 2, "bias"};    // (j, i)
    Halide::ImageParam dq_before{Halide::Float(32), 3, "dq_before"}, dk_before{Halide::Float(32), 3, "dk_before"},
        dv_before{Halide::Float(32), 3, "dv_before"};  // may be dq, dk and dv themselves
    Halide::Param<int32_t> form{"form"};
    Halide::Param<int32_t> careful{"careful"};  // a key or row is NaN or infinite: it must not reach who cannot see it
    Halide::Param<int32_t> first_query{"first_query"}, first_key{"first_key"}, kv_len{"kv_len"};
    Halide::Param<int32_t> visible_begin{"visible_begin"}, visible_end{"visible_end"},
        position_offset{"position_offset"};
    Halide::Param<int32_t> mask_form{"mask_form"}, has_bias{"has_bias"}, alibi_symmetric{"alibi_symmetric"};
    Halide::Param<float> scale{"scale"}, softcap{"softcap"}, slope{"slope"}, dropout_scale{"dropout_scale"};
    Halide::Param<uint64_t> dropout_seed{"dropout_seed"}, dropout_offset{"dropout_offset"},
        dropout_threshold{"dropout_threshold"};
    Halide::Param<uint64_t> first_element{"first_element"}, row_elements{"row_elements"};  // of the dropout mask

    Halide::Var c{"c"}, i{"i"}, j{"j"}, x{"x"};
    Product dots{"dots"}, weight_dots{"weight_dots"};                    // (j, i): q k^T, dout v^T
    Halide::Func scores{"scores"}, weight_grads{"weight_grads"};         // (j, i): the same, in memory
    Halide::Func weights{"weights"}, dropout{"dropout"};                 // (j, i): before dropout; its factor
    Halide::Func grads{"grads"};                                         // (j, i): weights, score_grads, logit_grads
    Product dq_tile{"dq_tile"}, dk_tile{"dk_tile"}, dv_tile{"dv_tile"};  // (c, i, x), (c, j, x), (c, j, x)
    Halide::Func dq{"dq"}, dk{"dk"}, dv{"dv"};

    explicit AttentionBackwardKernel(const BackwardTile &tile);

    std::vector<Halide::Argument> arguments() const;
    Halide::Pipeline pipeline() const { return Halide::Pipeline({grads, dq, dk, dv}); }

private:
    void define_grads();
    void state_buffer_contract();
};

}  // namespace heed
