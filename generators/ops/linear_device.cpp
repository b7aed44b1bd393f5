#include "generators/ops/linear_device.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

// Rows and columns after the last repeat it: their sums are not stored.
LinearDevice::LinearDevice(ElementType type, const ProductTile &tile)
    : LinearDeviceArguments({type}), TileProduct(tile, dim_in),
      all(0, tile.columns, 0, tile.rows, 0, ceil_div(columns, tile.columns), 0, ceil_div(num_rows, tile.rows), "all"),
      type(type) {
    const Expr x_row = min(down * tile.rows + row, num_rows - 1);
    const Expr w_row = first_column + min(across * tile.columns + column, columns - 1);
    define_product({type, {down}, place(x_row, x_first, x_batch, x_token)},
                   {type, {across}, after(weight_first, w_row, weight_row)}, {across, down});
    add(stored(all.w * tile.rows + all.y, all.z * tile.columns + all.x, sum(all.x, all.y, all.z, all.w)));
}

// The address of a row of x or out.
Expr LinearDevice::place(const Expr &row, const Expr &first, const Expr &of_batch, const Expr &of_token) const {
    const Expr batch = row / len;
    return after(after(first, batch, of_batch), row - batch * len, of_token);
}

Expr LinearDevice::stored(const Expr &row, const Expr &column, const Expr &sum) const {
    const Expr exists = row < num_rows && column < columns, has_bias = bias_first != cast<uint64_t>(0);
    const Expr bias = load_at_if(exists && has_bias, stored_type(type), bias_first, first_column + column);
    const Expr result = select(has_bias, sum + to_float(type, bias), sum);
    const Expr head = column / head_dim;
    const Expr to = after(place(row, out_first, out_batch, out_token), head, out_head),
               element = column - head * head_dim;
    if (type == ElementType::f32) return store_at_if(exists, to, element, result);
    return store_at_if(exists && out_is_f32 != 0, to, element, result) +
           store_at_if(exists && out_is_f32 == 0, to, element, from_float(type, result));
}

}  // namespace heed
