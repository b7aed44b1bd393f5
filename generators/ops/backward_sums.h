#pragma once
// Attention's gradients of tensors at addresses: sums along one side of the score matrix, for each of the other.
//
// In steps of rows of Y. Blocks for other columns of the sums compute the same scores again.

#include "generators/ops/backward_blocks.h"
#include "generators/ops/product.h"

namespace heed {

struct BackwardSumsDevice : BackwardBlocks {
    // `products`: of rows of a block and those that it meets at a time, of which the sums read `chunk` at a time;
    // columns: of the sums.
    struct Tile {
        ProductTile products;
        int chunk, columns;
    };
    struct Side {
        const BackwardSide side;
        std::vector<TileProduct> products;  // X0 . Y0 and X1 . Y1: (column: of Y, row: of X, across, h, down)
        Halide::RDom over;                  // Y in a chunk, chunk of a step, step, head that shares the rows
        Halide::RDom all;                   // column, row, down
        Halide::Func fields{"fields"};      // (sequence): what the table says of it
        Halide::Func met{"met"};            // (down): first row of Y that is met, and in how many steps
        Halide::Func x_rows{"x_rows"};      // (row, down): addresses of those of X0 and X1; 0: there is no such row
        Halide::Func y_rows{"y_rows"};      // (column, across, h, down): of those of Y0 and Y1
                                            // Where these are queries, query_values() follow
        Halide::Func dots{"dots"};          // (column, row, across, h, down): S and dP
        Weight weight = {};                 // (column, row, across, h, down)
        Halide::Func terms{"terms"};        // (column, row, across, h, down): dS, and P of keys
        Halide::Func y{"y"};                // (d, in_chunk, chunk, across, h, down): elements of Y0, and of Y1
        Halide::Func sums{"sums"};          // (d, row, down)
    };
    const Tile tile;
    Halide::Var row{"row"}, column{"column"}, across{"across"}, h{"h"}, down{"down"};
    Halide::Var d{"d"}, in_chunk{"in_chunk"}, chunk{"chunk"}, sequence{"sequence"};
    Side keys, queries;

    BackwardSumsDevice(ElementType type, const Tile &tile, const ScoreMod &score_mod);

private:
    void define_met(Side &of) const;
    Side make_side(BackwardSide side) const;
    void define_rows(Side &of) const;
    void define_products(Side &of) const;
    void define_terms(Side &of) const;
    void define_sums(Side &of) const;
};

}  // namespace heed
