#include "generators/ops/linear_device.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

// Rows and columns after the last repeat it: their sums are not stored. Zeros follow the last k.
LinearDevice::LinearDevice(ElementType type, const LinearDeviceTile &tile)
    : LinearDeviceArguments({type}), tile(tile),
      over_k(0, tile.width, 0, tile.chunks, 0, ceil_div(dim_in, tile.width * tile.chunks), "over_k"),
      all(0, tile.columns, 0, tile.rows, 0, ceil_div(columns, tile.columns), 0, ceil_div(num_rows, tile.rows), "all"),
      type(type) {
    const Expr x_row = min(down * tile.rows + row, num_rows - 1);
    x_tile(k, chunk, row, step, down) = loaded(place(x_row, x_first, x_batch, x_token));
    const Expr w_row = first_column + min(across * tile.columns + column, columns - 1);
    w_tile(k, chunk, column, step, across) = loaded(after(weight_first, w_row, weight_row));

    const auto with_product = [=](const Expr &so_far, const Expr &x, const Expr &w) {
        return tile.of_floats ? fused_on_device(x, w, so_far) : so_far + x * w;
    };
    define_sum({{column, row, across, down},
                0.f,
                in_tile(x_tile(over_k.x, over_k.y, row, over_k.z, down)),
                in_tile(w_tile(over_k.x, over_k.y, column, over_k.z, across)),
                with_product});
    add(stored(all.w * tile.rows + all.y, all.z * tile.columns + all.x, sum(all.x, all.y, all.z, all.w)));
}

// Element k of a chunk of the row that begins at `first`.
Expr LinearDevice::loaded(const Expr &first) const {
    const Expr number = step * tile.chunks + chunk;
    const Expr element = load_at_if(number < dim_in / tile.width, stored_type(type), first, number * tile.width + k);
    return tile.of_floats ? to_float(type, element) : element;
}

Expr LinearDevice::in_tile(const Expr &element) const { return tile.of_floats ? element : to_float(type, element); }

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
