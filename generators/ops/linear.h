#pragma once
// Dense layers: out = clip(x W^T + bias) over a block of rows, in two steps.
//
// linear_rows puts the rows of x into tiles of `rows` rows, as floats, k by k: the order in which linear reads them.
// Rows behind the last one repeat it. linear multiplies each tile with panels of `columns` columns of W, whose elements
// lie in that order too: weight(lane, k, panel) is W[panel * columns + lane][k].
//
// With bf16_dots (bf16 only) a step of k is a pair: elements 2 k and 2 k + 1 side by side in 32 bits, of x and of W, a
// 0 behind an odd end. With bf16_tiles (AMX) the steps, those of W filled up with zeros to a multiple of 16, of a row
// of a tile of x lie side by side.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operation_arguments.h"

namespace heed {

// The register tile of one row of the table: rows x columns accumulators.
struct LinearTile {
    int rows, columns;
    bool bf16_dots, bf16_tiles;
};

HEED_KERNEL_ARGUMENTS(LinearRowsArguments, HEED_LINEAR_ROWS)
HEED_KERNEL_ARGUMENTS(LinearArguments, HEED_LINEAR)

struct LinearRowsKernel : LinearRowsArguments {
    LinearTile tile;

    Halide::Var r{"r"}, k{"k"}, t{"t"};
    Halide::Func tiles{"tiles"};  // float, or a pair, (r, k, tile)

    LinearRowsKernel(ElementType type, const LinearTile &tile);

    Halide::Pipeline pipeline() const { return Halide::Pipeline(tiles); }
};

struct LinearKernel : LinearArguments {
    LinearTile tile;

    Halide::Var lane{"lane"}, r{"r"}, panel{"panel"}, t{"t"}, c{"c"}, row{"row"};
    Halide::RDom over_k;
    Halide::Func sum{"sum"};  // (lane, r, panel, tile)
    Halide::Func out{"out"};  // (c, row)

    LinearKernel(ElementType type, const LinearTile &tile);

    Halide::Pipeline pipeline() const { return Halide::Pipeline(out); }
};

}  // namespace heed
