#pragma once
// Lowering pass, after LowerBf16Tiles: the results of a tile of sums are made while matrix tiles multiply the next one.
//
//   for t { sums of t, step by step; for row { results of the sums } }
//
// becomes
//
//   for t { start; for step { products of t; a row of results of t - 1 }; its other rows; store the sums of t }
//   for row { results of the last sums }
//
// Vectors of results are a tenth to a third of the time of the tiles (linear, 384 to 512 elements of k), and the unit
// of matrix tiles has its own queue: it multiplies beside them. Apart they are more instructions than a core looks
// ahead. Each step makes one row only, because a store to out waits until the line has come to the core: with two rows
// beside each of the first 16 steps, 2400 x 888 x 2048 into new memory took 1.4 times the time. In Halide a stage's
// loops do not mix with those of another one.

#include <string>
#include <utility>
#include <vector>

#include "Halide.h"

namespace heed {

class WeaveResults : public Halide::Internal::IRMutator {
public:
    // tiles: the loop over t, by the end of its name. sums: the stage of tiles, which nothing but its one loop over
    // rows reads. steps: the names of its loops over steps, in their order.
    WeaveResults(std::string tiles, std::string sums, std::vector<std::string> steps)
        : tiles(std::move(tiles)), sums(std::move(sums)), steps(std::move(steps)) {}

    int found = 0;

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const std::string tiles, sums;
    const std::vector<std::string> steps;
};

}  // namespace heed
