#pragma once
// Kernels of attention weights: of products that are given, or that the kernel makes, a tile of rows after the other.

#include "generators/attention/probs.h"
#include "generators/ops/linear.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(AttentionProbsArguments, HEED_ATTENTION_PROBS)

// The products of a tile of rows, which stay in the L1 cache.
struct ProbsTile : ProductSums {
    Halide::Var lane{"lane"}, r{"r"}, panel{"panel"}, t{"t"};
    Halide::RDom over_k;                        // step of a block, block
    Halide::Func products{"products_of_tile"};  // (j, r, t)
};

// What a result is made of: its lines, and the rows of a tile and tiles that they are in.
struct ProbsResult {
    Halide::Func wanted;  // (j, i)
    ProbsLines lines;
    ProbsTile tile = {};
    Halide::RDom over_rows = {};
};

struct AttentionProbsKernel : AttentionProbsArguments {
    const LinearTile tile;  // of products that the kernel makes; no rows: they are given
    Halide::Var j{"j"}, i{"i"};
    Halide::Func scores{"scores"};  // (j, i)
    ProbsResult probs, probs_16;    // probs_16: in dtype, where that is not f32

    explicit AttentionProbsKernel(ElementType dtype, const LinearTile &tile = {});

    Halide::Pipeline pipeline() const;
    // Without probs_16 in f32.
    std::vector<OutputType> output_types() const;

    // What most calls are: conditions on which loads and arithmetic of the scores fall away.
    Halide::Expr is_plain() const, has_mask_only() const, has_bias_only() const, makes_probabilities() const;

private:
    Halide::Expr width() const { return mask.dim(0).extent(); }
    // Of row i, from its product with a key.
    Halide::Expr score(const Halide::Expr &key, const Halide::Expr &row, const Halide::Expr &product) const;
    void define(ProbsResult &result, const Halide::Type &type);
    Halide::Expr keeps_logits() const;  // no cap, no growth of the temperature, no ALiBi
    void state_buffer_contract();
};

}  // namespace heed
