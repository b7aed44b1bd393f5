#pragma once
// Attention's gradients of tensors at addresses: sums along one side of the score matrix, for each of the other.
//
// A block has rows X of a side and meets tiles of rows Y of the other. Scores S = X0 . Y0 and gradients of weights
// dP = X1 . Y1 give the weights P and the gradients dS of scores, and these the sums dS Y0 and, of keys, P Y1:
//   keys     X = k, v;     Y = q, dout of all heads of the group; dk and dv
//   queries  X = q, dout;  Y = k, v;                              dq
// Blocks for other columns of the sums compute the same scores again. No atomics: bits depend on nothing but the
// problem.
//
// In fragments of tensor cores (backward_fragments.cpp) the sums are made of the tiles of Y that the scores are made
// of, and all heads that share X's rows are one loop over steps.

#include "generators/contract/cuda_arguments.h"
#include "generators/ops/backward_scores.h"
#include "generators/ops/product.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(BackwardSumsDeviceArguments, HEED_CUDA_BACKWARD_SUMS)

struct BackwardSumsDevice : BackwardScores<BackwardSumsDeviceArguments>, Results {
    // `products`: of rows of a block and those that it meets at a time, of which the sums read `chunk` at a time;
    // columns: of the sums. in_fragments: the products' chunks are all of a row, whatever the head dims are.
    struct Tile {
        ProductTile products;
        int chunk, columns;
        bool in_fragments = false;
    };
    struct Side {
        const BackwardSide side;
        std::vector<TileProduct> products;  // X0 . Y0 and X1 . Y1: (column: of Y, row: of X, step)
        Halide::RDom over;                  // Y in a chunk, chunk of a step; step, head that shares the rows
        Halide::RDom all;                   // column, row, down
        Halide::RDom steps, over_pairs;     // in fragments: of all heads; in a pair, pair of a lane's columns of sums
        Halide::Func fields{"fields"};      // (sequence): what the table says of it
        Halide::Func met{"met"};            // (down): first row of Y that is met, and in how many steps of a head
        Halide::Func x_rows{"x_rows"};      // (row, down): addresses of those of X0 and X1; 0: there is no such row
        Halide::Func y_rows{"y_rows"};      // (column, step): of those of Y0 and Y1
                                            // Where these are queries, query_values() follow
        Halide::Func dots{"dots"};          // (column, row, step): S and dP
        Weight weight = {};                 // (column, row, step)
        Halide::Func terms{"terms"};        // (column, row, step): dS, and P of keys
        Halide::Func y{"y"};                // (d, in_chunk, chunk, step): elements of Y0, and of Y1
        Halide::Func sums{"sums"};          // (d, row, down)

        // In fragments.
        Halide::Func x_range{"x_range"};           // (row, down): first row of Y that the row meets, and how many
        Halide::Func stats{"stats"};               // lse and delta of queries: as Y (number, pair, step), where a pair
                                                   // has four numbers; as X (number, row, down)
        Halide::Func seen{"seen"};                 // (column, row, step): S; where it is hidden, hidden_score()
        std::vector<Halide::Func> step_sums = {};  // (d, row, step)
        Halide::Func doubts{"doubts"};             // (u, row, down): whether sums are to be computed in_repetition()
    };
    const Tile tile;
    Halide::Var row{"row"}, column{"column"}, across{"across"}, h{"h"}, down{"down"};
    Halide::Var d{"d"}, in_chunk{"in_chunk"}, chunk{"chunk"}, sequence{"sequence"}, number{"number"}, pair{"pair"},
        u{"u"};
    std::vector<Side> sides;

    BackwardSumsDevice(ElementType type, const Tile &tile, const std::vector<BackwardSide> &sides);

protected:
    Expr field(SequenceField which, const Expr &of) const override {
        return fields == nullptr ? BackwardScores::field(which, of) : (*fields)(of)[which];
    }

private:
    const ElementType type;
    const Halide::Func *fields = nullptr;  // of the side that is being defined

    // Where a block is. Neighbouring blocks belong to the same head.
    struct Block {
        Expr sequence, head, first_row, first_column;
        Expr num_rows, stored_rows;  // of the sequence: those that exist, those that have gradients
        Expr num_other;
    };
    Block block_of(BackwardSide side, const Expr &number) const;
    Rows rows(bool of_keys, int n, const Expr &sequence) const {
        return of_keys ? key_rows(n, sequence) : query_rows(n, sequence);
    }
    // Coordinates of what a step meets, after those in it.
    std::vector<Halide::Var> in_step(std::vector<Halide::Var> first) const;

    // Rows of Y that row x meets by lengths and places alone: from .. on and before ..
    struct Range {
        Expr begin, end;
    };
    Range range_of(BackwardSide side, const Block &at, const Expr &x) const;
    // What a step meets: first row of Y, its head.
    struct Step {
        Expr first, head;
    };
    Step step_of(const Side &of, const Block &at) const;

    void define_met(Side &of) const;
    Expr other_head(BackwardSide side, const Block &at, const Expr &number) const;
    Side make_side(BackwardSide side) const;
    void define_rows(Side &of) const;
    void define_products(Side &of) const;
    void define_terms(Side &of) const;
    void define_sums(Side &of) const;
    Expr stored(const Side &of) const;

    // In fragments.
    Expr unit() const;
    Expr hidden_score() const;
    void define_stats(Side &of) const;
    void define_terms_of_fragments(Side &of) const;
    void define_sums_of_fragments(Side &of) const;
    void define_doubts(Side &of) const;
};

}  // namespace heed
