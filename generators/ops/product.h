#pragma once
// Products of rows: sums along k of the elements of rows of x times those of rows of w, wherever they are.

#include "generators/common/device_memory.h"

namespace heed {

// What sums of products are made of.
struct ProductTerms {
    using Expr = Halide::Expr;
    std::vector<Halide::Var> at;                             // the coordinates of a sum
    Expr before, x, weight;                                  // what it begins with; the elements of a step of k
    std::function<Expr(Expr sum, Expr x, Expr weight)> add;  // the sum with their product
};

struct ProductSums {
    Halide::Func sum{"sum"};

    void define_sum(const ProductTerms &in) {
        sum(in.at) = in.before;
        sum(in.at) = in.add(sum(in.at), in.x, in.weight);
    }
};

// The tile of a block of threads. A step of k is `chunks` chunks of `width` elements, which are read at once.
struct ProductTile {
    int rows, columns, width, chunks;
    bool of_floats;  // elements are floats in the tiles of x and w, else as they are stored
};

// Rows at addresses, whole chunks of elements.
struct TileRows {
    ElementType type;
    std::vector<Halide::Var> at;  // which tile
    Halide::Expr first;           // the address of a row of it
    Halide::Expr exists = {};     // zeros where a row does not; undefined: all do
    Halide::Expr whole = {};      // whether chunks are 16 aligned bytes, for tiles of elements; undefined: they are
    Halide::Expr flipped = {};    // bits of elements
    bool held = false;            // of x: a sum's own row is in x_own
    bool meets_codes = false;     // each 16 of x are ordered as tensor cores find the codes of w, in x_ordered
    Halide::Expr line = {}, lines = {};  // its number, and how many exist; undefined: all do
};

// Tiles of rows of x and w, step by step along k, and the sums of their products. Zeros follow the last k.
struct TileProduct : ProductSums {
    const ProductTile tile;

    Halide::Var k{"k"}, chunk{"chunk"}, row{"row"}, column{"column"}, step{"step"};
    Halide::RDom over_k;            // element of a chunk, chunk of a step, step
    Halide::Func x_tile{"x_tile"};  // (k, chunk, row, step, which tile)
    Halide::Func w_tile{"w_tile"};  // (k, chunk, column, step, which tile)
    Halide::Func x_own{"x_own"};    // the same, which is held or ordered
    // (k, chunk, row, step, which tile), of x_own, in chunks of 8: of each 16 elements lane u's, 4 u to 4 u + 3, are
    // two of each chunk.
    Halide::Func x_ordered{"x_ordered"};

    // length: of rows; steps: of k.
    TileProduct(const ProductTile &tile, const Halide::Expr &length, const Halide::Expr &steps);
    TileProduct(const ProductTile &tile, const Halide::Expr &length);
    // sum is (column, row, at). x_line, w_line: of the tiles, which a sum reads; undefined: its row, its column.
    void define_product(const TileRows &x, const TileRows &w, const std::vector<Halide::Var> &at,
                        const Halide::Expr &x_line = {}, const Halide::Expr &w_line = {});

private:
    using Expr = Halide::Expr;
    const Expr length;

    Expr element(const TileRows &rows) const;
    Expr in_tile(const Expr &stored, const TileRows &rows) const;
};

}  // namespace heed
