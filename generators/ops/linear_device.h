#pragma once
// Dense layers, out = x W^T + bias, of tensors at addresses: tiles of the rows of x and of the columns of W, step by
// step along k, and the sums of their products.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/ops/product.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(LinearDeviceArguments, HEED_CUDA_LINEAR)

// Rows of x and W are whole chunks of elements.
struct LinearDevice : LinearDeviceArguments, TileProduct, Results {
    Halide::Var down{"down"}, across{"across"};
    Halide::RDom all;  // column, row, across, down, as sum
    // (row, down): the address of a row of out, 0 where it does not exist; (column, across): bytes to a column from
    // there, what is added to its sums.
    Halide::Func out_rows{"out_rows"}, of_columns{"of_columns"};

    // in_pairs: a thread has pairs of neighbouring columns, of elements of 16 bits.
    LinearDevice(ElementType type, const ProductTile &tile, bool in_pairs);

private:
    using Expr = Halide::Expr;
    const ElementType type;

    Expr place(const Expr &row, const Expr &first, const Expr &of_batch, const Expr &of_token) const;
    void define_places();
    Expr stored(bool in_pairs) const;
};

}  // namespace heed
