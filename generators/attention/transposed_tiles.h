#pragma once

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

// in(i, j) as a function of (j, i), by square tiles of lanes x lanes elements: each of log2(lanes) perfect shuffles (an
// interleave of the two halves of the tile) rotates the index of an element by one bit.
struct TransposedTiles {
    std::vector<Halide::Func> steps;  // (e, tile_i, tile_j, rest...)

    explicit TransposedTiles(const std::string &name) : name(name) {}
    Halide::Expr define(int lanes, const Halide::Func &in, const Halide::Expr &i, const Halide::Expr &j,
                        const std::vector<Halide::Var> &rest);

private:
    std::string name;
};

}  // namespace heed
