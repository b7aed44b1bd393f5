#pragma once
// A step of attention has two products: rows of their tiles, and what is made while these multiply.

#include <functional>
#include <string>
#include <vector>

#include "Halide.h"
#include "generators/lowering/row_lines.h"
#include "generators/lowering/tile_block.h"
#include "generators/lowering/woven_weights.h"

namespace heed {

constexpr int kept_rows = 2;  // of tiles of the product of queries and keys

// A row of tiles of a product, over all of its pairs.
struct TileRow {
    TileBlock block;
    TileBlock::At at, stored_at;
    Halide::Expr steps;
    bool of_product = true;  // of queries and keys

    std::vector<Halide::Internal::Stmt> stores() const;
    // As a loop: `after` each step along the pairs comes what it makes.
    Halide::Internal::Stmt whole(const std::function<Halide::Internal::Stmt(const Halide::Expr &step)> &after) const;
};

// The periods of a step. A single one has no loop.
struct PeriodLoop {
    const std::string name;
    const int periods;

    Halide::Expr period() const;
};

// What is made while tiles of known sizes multiply: all weights of the step's keys, and prefetches of rows.
struct BesideTiles {
    const WovenWeights &weights;
    const int rows_of_keys;             // of tiles, in a step
    const AskedRows *const asked_rows;  // NULL: none
    const bool exactly;                 // with the exact sums
};

// The rows of a period in line, weights and lines spread evenly over their products. A row of tiles is stored while the
// first products of the next one are computed.
Halide::Internal::Stmt in_line(const std::vector<TileRow> &rows, const PeriodLoop &loop, const BesideTiles &beside);

}  // namespace heed
