#pragma once
// Lowering pass: matrix tiles of bf16 (AMX, TDPBF16PS).
//
// A stage that is nothing but the loops of a matrix product, each step a scalar bf16_dot() of two pairs,
//
//   for m, for n, for p (in any order):  c(n, m) = bf16_dot(c(n, m), b(n, p), a(p, m))
//
// with neighbours in memory along n in b and c and along p in a, n a known multiple of 16, m one too or any number of
// blocks of such a length, p any multiple of 16, or a loop of 16 in one over blocks of p, becomes loops over blocks of
// 2 x 2 tiles (1 x 4 where the tiles of m are odd) of 16 x 16 sums, which stay in four of the eight tile registers over
// all of p. Other loops may be around it and around what clears c. Halide 21's own recogniser holds one.

#include <string>
#include <utility>
#include <vector>

#include "Halide.h"

namespace heed {

class LowerBf16Tiles : public Halide::Internal::IRMutator {
public:
    // marked: stages each of whose steps tile_step() follows, with one step along the pairs or more.
    explicit LowerBf16Tiles(std::vector<std::string> marked = {}) : marked(std::move(marked)) {}

    int found = 0;  // products that became tiles; any other is left as it is

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;

private:
    const std::vector<std::string> marked;
};

}  // namespace heed
