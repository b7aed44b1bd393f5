#pragma once
// Dense layers, out = x W^T + bias, of tensors at addresses: tiles of the rows of x and of the columns of W, step by
// step along k, and the sums of their products.

#include "generators/common/device_memory.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/ops/linear.h"

namespace heed {

// The tile of a block of threads. A step of k is `chunks` chunks of `width` elements, which are read at once: rows of x
// and W are whole chunks.
struct LinearDeviceTile {
    int rows, columns, width, chunks;
    bool of_floats;  // elements are floats in the tiles of x and W, else as they are stored
};

HEED_KERNEL_ARGUMENTS(LinearDeviceArguments, HEED_CUDA_LINEAR)

struct LinearDevice : LinearDeviceArguments, LinearSums, Results {
    const LinearDeviceTile tile;

    Halide::Var k{"k"}, chunk{"chunk"}, row{"row"}, column{"column"}, step{"step"}, down{"down"}, across{"across"};
    Halide::RDom over_k;            // element of a chunk, chunk of a step, step
    Halide::Func x_tile{"x_tile"};  // (k, chunk, row, step, down)
    Halide::Func w_tile{"w_tile"};  // (k, chunk, column, step, across)
    Halide::RDom all;               // column, row, across, down, as sum

    LinearDevice(ElementType type, const LinearDeviceTile &tile);

private:
    using Expr = Halide::Expr;
    const ElementType type;

    Expr loaded(const Expr &first) const;
    Expr in_tile(const Expr &element) const;
    Expr place(const Expr &row, const Expr &first, const Expr &of_batch, const Expr &of_token) const;
    Expr stored(const Expr &row, const Expr &column, const Expr &sum) const;
};

}  // namespace heed
