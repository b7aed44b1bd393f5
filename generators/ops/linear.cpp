#include "generators/ops/linear.h"

#include "generators/common/ceil_div.h"
#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;

namespace {

// Compares bits: the default float mode may assume that no value is NaN or infinite.
Expr clipped(const Expr &value, const Expr &limit) {
    Expr bits = reinterpret<int32_t>(value), magnitude = bits & 0x7fffffff;
    Expr beyond = magnitude > reinterpret<int32_t>(limit) && magnitude <= 0x7f800000;
    return reinterpret<float>(select(beyond, reinterpret<int32_t>(limit) | (bits & Expr(INT32_MIN)), bits));
}

// Rows of a tile of x side by side, or steps.
void lay_out(Internal::Dimension rows, Internal::Dimension steps, const LinearTile &tile) {
    rows.set_stride(tile.bf16_tiles ? steps.extent() : Expr(1));
    steps.set_stride(tile.bf16_tiles ? 1 : tile.rows);
}

}  // namespace

LinearRowsKernel::LinearRowsKernel(ElementType type, const LinearTile &tile)
    : LinearRowsArguments({type, type, tile.bf16_dots}), tile(tile) {
    Expr length = x.dim(0).extent(), row = min(t * tile.rows + r, x.dim(1).extent() - 1);
    auto element = [&](const Expr &at) { return select(at < length, x(min(at, length - 1), row), cast(x.type(), 0)); };
    Expr first = tile.bf16_tiles ? element(2 * k) : x(2 * k, row);
    tiles(r, k, t) =
        tile.bf16_dots ? reinterpret<int32_t>(bf16_pair(first, element(2 * k + 1))) : to_float(type, x(k, row));
    OutputImageParam buffer = tiles.output_buffer();
    x.dim(0).set_min(0);
    x.dim(1).set_min(0);
    buffer.dim(0).set_bounds(0, tile.rows);
    Expr steps = tile.bf16_tiles ? buffer.dim(1).extent() : tile.bf16_dots ? ceil_div(length, 2) : length;
    buffer.dim(1).set_bounds(0, steps);
    lay_out(buffer.dim(0), buffer.dim(1), tile);
    buffer.dim(2).set_min(0);
}

LinearKernel::LinearKernel(ElementType type, const LinearTile &tile)
    : LinearArguments({type, type, tile.bf16_dots}), tile(tile), over_k(0, weight.dim(1).extent(), "over_k") {
    sum(lane, r, panel, t) = 0.f;
    Expr so_far = sum(lane, r, panel, t), of_x = x(r, over_k, t), of_weight = weight(lane, over_k, panel);
    sum(lane, r, panel, t) = tile.bf16_dots
                                 ? bf16_dot(so_far, reinterpret<uint32_t>(of_weight), reinterpret<uint32_t>(of_x))
                                 : so_far + of_x * to_float(type, of_weight);
    Expr value = sum(c % tile.columns, row % tile.rows, c / tile.columns, row / tile.rows) + bias(c);
    out(c, row) = from_float(type, clipped(value, clip));

    OutputImageParam buffer = out.output_buffer();
    x.dim(0).set_bounds(0, tile.rows);
    x.dim(1).set_bounds(0, weight.dim(1).extent());
    lay_out(x.dim(0), x.dim(1), tile);
    x.dim(2).set_min(0);
    weight.dim(0).set_bounds(0, tile.columns);
    weight.dim(1).set_min(0).set_stride(tile.columns);
    weight.dim(2).set_min(0);
    bias.dim(0).set_min(0);
    buffer.dim(0).set_min(0);
    buffer.dim(1).set_min(0);
}

}  // namespace heed
