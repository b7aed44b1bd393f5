#include "generators/ops/linear_device.h"

#include "generators/common/ceil_div.h"
#include "generators/ops/pair_stores.h"

namespace heed {

using namespace Halide;

// Rows and columns after the last repeat it: their sums are not stored.
LinearDevice::LinearDevice(ElementType type, const ProductTile &tile, bool in_pairs)
    : LinearDeviceArguments({type}), TileProduct(tile, dim_in),
      all(0, tile.columns, 0, tile.rows, 0, ceil_div(columns, tile.columns), 0, ceil_div(num_rows, tile.rows), "all"),
      type(type) {
    const Expr x_row = min(down * tile.rows + row, num_rows - 1);
    const Expr w_row = first_column + min(across * tile.columns + column, columns - 1);
    define_product({type, {down}, place(x_row, x_first, x_batch, x_token)},
                   {type, {across}, after(weight_first, w_row, weight_row)}, {across, down});
    define_places();
    add(stored(in_pairs));
}

// The address of a row of x or out.
Expr LinearDevice::place(const Expr &row, const Expr &first, const Expr &of_batch, const Expr &of_token) const {
    const Expr batch = row / len;
    return after(after(first, batch, of_batch), row - batch * len, of_token);
}

void LinearDevice::define_places() {
    const Expr in_rows = down * tile.rows + row, in_columns = across * tile.columns + column;
    out_rows(row, down) =
        select(in_rows < num_rows, place(in_rows, out_first, out_batch, out_token), cast<uint64_t>(0));
    const Expr head = in_columns / head_dim, in_head = in_columns - head * head_dim;
    const Expr bytes = type == ElementType::f32 ? Expr(4) : select(out_is_f32 != 0, 4, 2);
    const Expr has_bias = bias_first != cast<uint64_t>(0);
    const Expr bias = to_float(
        type, load_at_if(in_columns < columns && has_bias, stored_type(type), bias_first, first_column + in_columns));
    constexpr uint32_t nothing = 0x80000000;  // -0, which changes no sum
    of_columns(column, across) =
        Tuple(cast<uint64_t>(head) * out_head + cast<uint64_t>(in_head * bytes),
              reinterpret<float>(select(has_bias, reinterpret<uint32_t>(bias), Expr(nothing))));
}

Expr LinearDevice::stored(bool in_pairs) const {
    const Expr to_row = out_rows(all.y, all.w);
    const Expr exists = to_row != cast<uint64_t>(0) && all.z * tile.columns + all.x < columns;
    const auto value = [&](const Expr &c) { return sum(c, all.y, all.z, all.w) + of_columns(c, all.z)[1]; };
    const auto to = [&](const Expr &c) { return to_row + of_columns(c, all.z)[0]; };
    if (type == ElementType::f32) return store_at_if(exists, to(all.x), 0, value(all.x));
    const Expr of_floats = store_at_if(exists && out_is_f32 != 0, to(all.x), 0, value(all.x));
    const Expr on = exists && out_is_f32 == 0;
    if (!in_pairs) return of_floats + store_at_if(on, to(all.x), 0, from_float(type, value(all.x)));
    const Expr places = out_first | out_batch | out_token | out_head;
    const Expr in_words = (places & cast<uint64_t>(3)) == 0 && (head_dim | columns) % 2 == 0;
    return of_floats + store_in_pairs(type, all.x, on, in_words, value, to);
}

}  // namespace heed
