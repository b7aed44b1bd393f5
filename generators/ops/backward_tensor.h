#pragma once
// Attention's gradients on tensor cores. Elements of 16 bits, in fragments of mma.m16n8k16.
//
// A block (BackwardBlocks) meets the rows of all heads that share its own in one loop: of each step's rows of Y those
// of all heads, one after the other. The sums are made of the tiles of Y that the scores are made of.

#include "generators/ops/backward_blocks.h"
#include "generators/ops/product.h"

namespace heed {

struct BackwardTensorDevice : BackwardBlocks {
    const BackwardSide side;
    const bool is_plain;           // nothing changes a logit but its scale: lengths and places alone say who sees whom
    const ProductTile tile;        // rows of a block and those that it meets at a time; chunks: all of a row
    const int num_parts, columns;  // each part has all scores of the block's rows, and some columns of the sums
    Halide::Var row{"row"}, column{"column"}, across{"across"}, down{"down"}, d{"d"}, sequence{"sequence"};
    Halide::Var number{"number"}, pair{"pair"}, u{"u"}, part{"part"};
    std::vector<TileProduct> products;  // X0 . Y0, X1 . Y1: (column: of Y, row: of X, part, across: step, down: block)
    Halide::RDom over;                  // Y in a chunk, chunk of a step
    Halide::RDom steps;                 // of all heads
    Halide::RDom over_columns;          // of a row's lane that shares no counters of dropout: in a pair, pair
    Halide::RDom over_counters;         // of dropout, of a lane
    Halide::RDom over_pairs;            // in a pair, pair of a lane's columns of sums
    Halide::RDom all;                   // column of a part, row, block, part

    Halide::Func fields_of{"fields"};  // (sequence): what the table says of it
    Halide::Func met{"met"};           // (down): first row of Y, number of steps; first and last row that all see
    Halide::Func x_rows{"x_rows"};     // (row, down): addresses of those of X0 and X1; 0: there is no such row
    Halide::Func x_range{"x_range"};   // (row, down): first row of Y that the row sees, and how many
    Halide::Func place{"place"};       // (down), unless plain: sequence, head and first row, read where logits change
    Halide::Func x_lines{"x_lines"};   // (row, down), unless plain: where a row of X begins in the mask, in the bias
    Halide::Func y_rows{"y_rows"};     // (column, across, down): addresses of those of Y0 and Y1
    Halide::Func stats{"stats_of"};    // lse and delta: of queries as Y (number, pair, across, down), where a pair of
                                       // queries has four numbers; as X (number, row, down)
    // (u, row, part, across, down), unless plain: bits of weights that dropout keeps: of the counters of a lane, of
    // those of two lanes and more, of a lane's own weights.
    Halide::Func counted{"counted"};
    std::vector<Halide::Func> gathered;
    Halide::Func kept{"kept"};
    // (column, row, part, across, down), unless plain: dP after dropout, minus delta, times the slope of the softcap
    // where `stages` say so, of which each makes one change to logits. A block passes over what the call does not have;
    // a score function is always there.
    Halide::Func graded{"graded"};
    std::vector<Halide::Func> stages;
    Halide::Func seen{"seen"};    // (column, row, part, across, down): S, or logits; hidden_score() where it is hidden
    Halide::Func terms{"terms"};  // (column, row, part, across, down): dS, and P of keys
    std::vector<Halide::Func> step_sums;  // (d, row, part, across, down)
    Halide::Func sums{"sums"};            // (d, row, part, down)
    Halide::Func doubts{"doubts"};        // (u, row, part, down): whether sums are to be computed in_repetition()

    // (u, row, part, down): of each gradient the address of a lane's first element of a row, and how many elements
    // there are from there on; whether the row exists.
    Halide::Func out_rows{"out_rows"};

    BackwardTensorDevice(ElementType type, BackwardSide side, bool is_plain, const ProductTile &tile, int parts,
                         const ScoreMod &score_mod);

    bool asks_user() const { return score_mod.logit || score_mod.visible; }

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
    Expr hidden_unless(const Expr &visible, const Expr &score) const;
    // The place of a logit.
    struct Logit {
        Row query;
        Expr key;
    };
    Logit logit(const Expr &of_column) const;
    Expr bit_of(const Expr &of_column) const;
    Expr keeps_weight() const;
    void define_kept();
    // Element (column, row) of the mask or of a bias; the last row and key take the places of those that do not exist.
    Expr element(bool of_bias, const Halide::Type &of) const;
    Expr stat(int which) const;
    void define_lines();
    void add_stage(const char *name, const std::vector<Expr> &values);
    Expr by_user(const Expr &logit, Expr *gradient);
    Expr changed_in_stages(const Expr &product, const Expr &weight_dot, Expr *gradient);
    Expr scaled_sum(int n, const Expr &sum) const;
    void define_met();
    void define_rows();
    void define_products();
    void define_stats();
    void define_terms();
    void define_sums();
    void define_doubts();
    void add_gradients();
};

}  // namespace heed
