#pragma once
// The gradient of the bias: each element is the sum of the gradients of the logits that share it, each from its two
// products.

#include "generators/contract/cuda_arguments.h"
#include "generators/ops/backward_scores.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(BackwardBiasDeviceArguments, HEED_CUDA_BACKWARD_BIAS)

struct BackwardBiasDevice : BackwardScores<BackwardBiasDeviceArguments>, Results {
    static constexpr int logits_of_thread = 8;  // that an element of one thread may have; others have a block

    // Sums over the logits of an element: `line`s of a query each, of `key`s.
    struct Sums {
        Halide::RDom over;                      // key, line; of a block: key, every threads-th line
        Halide::RDom over_d, over_d_of_v;       // elements of a row
        Halide::Func seen{"seen"};              // (key, line, element): by the lengths and places alone
        Halide::Func rows{"rows"};              // (key, line, element): where those of q, k, dout and v begin
        Halide::Func dot{"dot"};                // (key, line, element): q . k
        Halide::Func weight_dot{"weight_dot"};  // (key, line, element): dout . v
        Halide::Func sum{"sum"};                // (element), of a block (part, element)
        Halide::RDom all;
    };
    Halide::Var key{"key"}, line{"line"}, element{"element"}, part{"part"};
    Sums of_block, of_thread;
    Halide::RDom over_parts;
    Halide::Func total{"total"};  // (element): of a block

    // `threads`: of a block.
    BackwardBiasDevice(ElementType type, int threads, const ScoreMod &score_mod);

private:
    using Expr = Halide::Expr;
    const ElementType type;

    // A logit: key j of a row.
    struct Logit {
        Row row;
        Expr j;
    };
    struct Axes {
        Expr key, row, head, sequence;
    };
    Axes extents() const { return {dbias_keys, dbias_rows, dbias_heads, dbias_batch}; }
    Axes shared() const;
    Expr num_elements() const { return dbias_keys * dbias_rows * dbias_heads * dbias_batch; }
    Expr num_lines() const;
    Axes place_of(const Expr &number) const;
    Logit logit(const Expr &of_key, const Expr &of_line, const Expr &of_element) const;
    Expr is_seen(const Logit &at) const;
    void define_dots(Sums &sums) const;
    Expr gradient(const Sums &sums, const Expr &of_key, const Expr &of_line, const Expr &of_element) const;
    Expr kept(const Logit &at) const;
    Expr stored(const Expr &of_element, const Expr &sum) const;
};

}  // namespace heed
