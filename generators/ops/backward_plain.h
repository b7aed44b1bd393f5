#pragma once
// Attention's gradients on tensor cores, where nothing changes a logit but its scale: lengths and places alone say who
// sees whom. Elements of 16 bits, in fragments of mma.m16n8k16.
//
// A block (BackwardBlocks) meets the rows of all heads that share its own in one loop: of each 64 rows of Y those of
// all heads, one after the other. The sums are made of the tiles of Y that the scores are made of.

#include "generators/ops/backward_blocks.h"
#include "generators/ops/product.h"

namespace heed {

struct BackwardPlainDevice : BackwardBlocks {
    const BackwardSide side;
    const ProductTile tile;  // rows of a block and those that it meets at a time; chunks: all of a row
    Halide::Var row{"row"}, column{"column"}, across{"across"}, down{"down"}, d{"d"}, sequence{"sequence"};
    Halide::Var number{"number"}, pair{"pair"}, u{"u"};
    std::vector<TileProduct> products;  // X0 . Y0 and X1 . Y1: (column: of Y, row: of X, across: step, down: block)
    Halide::RDom over;                  // Y in a chunk, chunk of a step
    Halide::RDom steps;                 // of all heads
    Halide::RDom over_pairs;            // in a pair, pair of a lane's columns of sums
    Halide::RDom all;                   // column, row, block

    Halide::Func fields_of{"fields"};  // (sequence): what the table says of it
    Halide::Func met{"met"};           // (down): first row of Y, number of steps; first and last row that all see
    Halide::Func x_rows{"x_rows"};     // (row, down): addresses of those of X0 and X1; 0: there is no such row
    Halide::Func x_range{"x_range"};   // (row, down): first row of Y that the row sees, and how many
    Halide::Func y_rows{"y_rows"};     // (column, across, down): addresses of those of Y0 and Y1
    Halide::Func stats{"stats_of"};    // lse and delta: of queries as Y (number, pair, across, down), where a pair of
                                       // queries has four numbers; as X (number, row, down)
    Halide::Func seen{"seen"};         // (column, row, across, down): S; hidden_score() where it is hidden
    Halide::Func terms{"terms"};       // (column, row, across, down): dS, and P of keys
    std::vector<Halide::Func> step_sums;  // (d, row, across, down)
    Halide::Func sums{"sums"};            // (d, row, down)
    Halide::Func doubts{"doubts"};        // (u, row, down): whether sums are to be computed in_repetition()

    BackwardPlainDevice(ElementType type, BackwardSide side, const ProductTile &tile);

private:
    bool is_of_keys() const { return side == backward_keys; }
    int num_sums() const { return is_of_keys() ? 2 : 1; }

    // Of step `across`: how many times as many rows of Y are before its own, and the first one. at_step: where its
    // head's rows are, from where those of the first step are.
    Expr number_of_rows() const;
    Expr first_of_step() const;
    Expr at_step(const Expr &of_first, const Expr &head_bytes, const Expr &row_bytes) const;

    Expr unit() const;
    Expr hidden_score() const;
    void define_met();
    void define_rows();
    void define_products();
    void define_stats();
    void define_terms();
    void define_sums();
    void define_doubts();
};

}  // namespace heed
