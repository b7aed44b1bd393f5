#pragma once
// The elementwise part of a tile of attention's gradients: from scores and the gradients of weights to those of logits.

#include "generators/attention/dropout.h"
#include "generators/attention/logits.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/fields.h"
#include "generators/contract/operations.h"
#include "heed/user_score.h"

namespace heed {

// exp(x) of a weight, which is at most 1: by rounding x may be above 0. NaN stays NaN.
Halide::Expr weight_of(const Halide::Expr &x);

// Whether the row with this lse is there and sees a key.
Halide::Expr sees_keys(const Halide::Expr &lse);

// What dout . v and the weight before dropout make: the weight after it and the gradient of the value of the logit.
// factor: what dropout multiplies the weight by; dropped: that is 0, and then the product may be anything.
struct WeightGradients {
    Halide::Expr weight, logit;
};
WeightGradients weight_gradients(const Halide::Expr &weight, const Halide::Expr &weight_dot, const Halide::Expr &delta,
                                 const Halide::Expr &factor, const Halide::Expr &dropped);

// A block of query rows i against a block of keys j. Tiles are in the order of `at`.
struct BackwardLogits {
    Halide::Var i{"i"}, j{"j"};
    const std::vector<Halide::Var> at;

    ArgumentTypes types;
    HEED_BACKWARD_ROWS(HEED_IMAGE_MEMBER)
    HEED_PARAM_MEMBER(form, int32_t)
    HEED_BACKWARD_VALUES(HEED_PARAM_MEMBER)

    const ScoreMod score_mod;  // with its derivative

    Halide::Func weights{"weights"}, dropout{"dropout"};  // before dropout; its factor

    enum class Order { keys_first, queries_first };
    BackwardLogits(Order order, const ScoreMod &score_mod)
        : at(order == Order::keys_first ? std::vector<Halide::Var>{j, i} : std::vector<Halide::Var>{i, j}),
          score_mod(score_mod) {}

    struct Gradients {
        Halide::Expr weight, score, logit;  // the weight after dropout
    };
    // Once, of q k^T and dout v^T at (i, j).
    Gradients gradients(const Halide::Expr &score, const Halide::Expr &weight_grad);

private:
    ScoreBuffers score_buffers() const;
};

}  // namespace heed
