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

    LinearDevice(ElementType type, const ProductTile &tile);

private:
    using Expr = Halide::Expr;
    const ElementType type;

    Expr place(const Expr &row, const Expr &first, const Expr &of_batch, const Expr &of_token) const;
    Expr stored(const Expr &row, const Expr &column, const Expr &sum) const;
};

}  // namespace heed
