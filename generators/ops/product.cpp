#include "generators/ops/product.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;
using Internal::as_const_int;

namespace {

template <typename T>
std::vector<T> joined(std::vector<T> first, const std::vector<Var> &rest) {
    first.insert(first.end(), rest.begin(), rest.end());
    return first;
}

}  // namespace

TileProduct::TileProduct(const ProductTile &tile, const Expr &length, const Expr &steps)
    : tile(tile), over_k(0, tile.width, 0, tile.chunks, 0, steps, "over_k"), length(length) {}

TileProduct::TileProduct(const ProductTile &tile, const Expr &length)
    : TileProduct(tile, length, ceil_div(length, tile.width * tile.chunks)) {}

void TileProduct::define_product(const TileRows &x, const TileRows &w, const std::vector<Var> &at, const Expr &x_line,
                                 const Expr &w_line) {
    x_tile(joined<Var>({k, chunk, row, step}, x.at)) = element(x);
    w_tile(joined<Var>({k, chunk, column, step}, w.at)) = element(w);
    const Expr line = x_line.defined() ? x_line : Expr(row);
    if (x.held || x.meets_codes) {
        const Expr own = x.held ? line : Expr(row);
        x_own(joined<Var>({k, chunk, row, step}, x.at)) = x_tile(joined<Expr>({k, chunk, own, step}, x.at));
    }
    Func rows_of_x = x.held ? x_own : x_tile;
    Expr place = over_k.x, in_chunks = over_k.y;
    if (x.meets_codes) {
        const Expr element = k / 2 * 4 + chunk % 2 * 2 + k % 2;
        x_ordered(joined<Var>({k, chunk, row, step}, x.at)) =
            x_own(joined<Expr>({element, chunk / 2, row, step}, x.at));
        rows_of_x = x_ordered;
        in_chunks = in_chunks * 2 + place % 4 / 2;
        place = place / 4 * 2 + place % 2;
    }
    const Expr column_of_w = w_line.defined() ? w_line : Expr(column);
    const auto with_product = [of_floats = tile.of_floats](const Expr &so_far, const Expr &of_x, const Expr &of_w) {
        return of_floats ? fused_on_device(of_x, of_w, so_far) : so_far + of_x * of_w;
    };
    define_sum({joined<Var>({column, row}, at), 0.f,
                in_tile(rows_of_x(joined<Expr>({place, in_chunks, x.held ? Expr(row) : line, over_k.z}, x.at)), x),
                in_tile(w_tile(joined<Expr>({over_k.x, over_k.y, column_of_w, over_k.z}, w.at)), w), with_product});
}

// Element k of a chunk of a row.
Expr TileProduct::element(const TileRows &rows) const {
    const Expr number = step * tile.chunks + chunk, index = number * tile.width + k;
    const auto whole = as_const_int(length);
    const bool all_there =
        !rows.exists.defined() && !rows.lines.defined() && whole && *whole % (tile.width * tile.chunks) == 0;
    const Expr in_row = rows.whole.defined() ? number * tile.width < length : number < length / tile.width;
    const Type type = stored_type(rows.type);
    // One comparison, of which most does not depend on the step.
    const Expr exists = rows.lines.defined()    ? rows.line < select(in_row, rows.lines, 0)
                        : rows.exists.defined() ? rows.exists && in_row
                                                : in_row;
    Expr stored = all_there              ? load_at(type, rows.first, index)
                  : rows.whole.defined() ? load_chunks_if(exists, rows.whole, type, rows.first, index,
                                                          whole && *whole % tile.width == 0 ? Expr() : length)
                                         : load_at_if(exists, type, rows.first, index);
    if (rows.flipped.defined()) stored = stored ^ rows.flipped;
    return tile.of_floats ? to_float(rows.type, stored) : stored;
}

Expr TileProduct::in_tile(const Expr &stored, const TileRows &rows) const {
    return tile.of_floats ? stored : to_float(rows.type, stored);
}

}  // namespace heed
