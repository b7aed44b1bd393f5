#pragma once
// Dense layers: out = clip(x W^T + bias) over a block of rows, in two steps.
//
// linear_rows puts the rows of x into tiles of `rows` rows, in the order in which linear reads them: blocks of
// linear_step_block steps of k, of each row side by side. A step is a float, or with bf16_dots a pair: elements 2 k and
// 2 k + 1 in 32 bits. Steps after the last element are 0; rows after the last one repeat it.
//
// linear multiplies each tile with panels of `columns` columns of W, `panels` of them at once: weight(lane, k, panel)
// is W[panel * columns + lane][step k], 0 after the last element as well. sum is (lane, r, panel, tile).
//
// linear_in_place multiplies the rows of x where they are, pairs of bf16 too: where few panels read them, packing is a
// large part of the work. Its sums are those of linear, bit for bit.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"
#include "generators/ops/product.h"

namespace heed {

// The register tile of one kernel of the table: rows x columns x panels accumulators.
struct LinearTile {
    int rows, columns, panels;
    bool bf16_dots, bf16_tiles;
};

HEED_KERNEL_ARGUMENTS(LinearRowsArguments, HEED_LINEAR_ROWS)
HEED_KERNEL_ARGUMENTS(LinearArguments, HEED_LINEAR)
HEED_KERNEL_ARGUMENTS(LinearInPlaceArguments, HEED_LINEAR_IN_PLACE)
HEED_KERNEL_ARGUMENTS(AttentionProductsArguments, HEED_ATTENTION_PRODUCTS)

struct LinearRowsKernel : LinearRowsArguments {
    LinearTile tile;

    Halide::Var step{"step"}, r{"r"}, block{"block"}, t{"t"};
    Halide::Func tiles{"tiles"};  // float, or a pair, (step, r, block, tile)
    const int width;              // elements of a step
    // Whole steps of a row; of pairs, the step that has one element; (step, block) of blocks that the row does not
    // fill.
    Halide::RDom filled, half_filled, rest;

    LinearRowsKernel(ElementType type, const LinearTile &tile);

    Halide::Pipeline pipeline() const { return Halide::Pipeline(tiles); }
};

struct LinearKernel : LinearArguments, ProductSums {
    LinearTile tile;

    Halide::Var lane{"lane"}, r{"r"}, panel{"panel"}, t{"t"}, c{"c"}, row{"row"};
    Halide::RDom over_k;      // step of a block, block
    Halide::Func out{"out"};  // (c, row)

    LinearKernel(ElementType type, const LinearTile &tile);

    Halide::Pipeline pipeline() const { return Halide::Pipeline(out); }
};

// Sums of pairs of bf16 alone, tile by tile: out is (lane, r, panel, tile).
struct AttentionProductsKernel : AttentionProductsArguments {
    Halide::Var lane{"lane"}, r{"r"}, panel{"panel"}, t{"t"};
    Halide::RDom over_k;  // step of a block, block
    Halide::Func out{"out"};

    explicit AttentionProductsKernel(const LinearTile &tile);

    Halide::Pipeline pipeline() const { return Halide::Pipeline(out); }
};

struct LinearInPlaceKernel : LinearInPlaceArguments {
    static constexpr int in_place_block = 4;  // steps that are unrolled
    LinearTile tile;

    Halide::Var lane{"lane"}, r{"r"}, panel{"panel"}, t{"t"}, c{"c"}, row{"row"};
    const int width;  // elements of a step
    // Step of a block, block; the whole steps after the last block; of pairs, the step that has one element.
    Halide::RDom over_blocks, over_rest, over_half;
    Halide::Func sum{"sum"};  // (lane, r, panel, tile)
    Halide::Func out{"out"};  // (c, row)

    // `pitch`: columns of a panel.
    LinearInPlaceKernel(ElementType type, const LinearTile &tile, int pitch);

    Halide::Pipeline pipeline() const { return Halide::Pipeline(out); }
};

}  // namespace heed
