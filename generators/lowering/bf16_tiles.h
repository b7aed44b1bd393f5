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
// all of p. Other loops may be around it and around what clears c. Halide 21's own recogniser holds one. a may be
// select(condition, one buffer, another one) with a condition that no loop changes: each has its loops.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "generators/lowering/bf16_product.h"
#include "generators/lowering/start_sums.h"

namespace heed {

using MakeTiles = std::function<Halide::Internal::Stmt(const Bf16Product &)>;

// The tiles of a product. has_steps: one step along the pairs or more, where their number is not known.
Halide::Internal::Stmt matrix_tiles(const Bf16Product &product, bool has_steps = false);

// Tiles of a product whose `started` and `has_started` are set: they read the latter. Where the product is added the
// sums hold something from then on.
Halide::Internal::Stmt with_start(const Bf16Product &product, const Halide::Internal::Stmt &tiles,
                                  const Halide::Expr &is_added = Halide::Internal::const_true());

// The body of a stage with what `make` makes in place of the loops of the product that it computes, and of those that
// clear what it starts from; undefined where there is no such product.
Halide::Internal::Stmt with_product(const Halide::Internal::Stmt &body, const MakeTiles &make);

// The loop over the tiles of pairs of a stage's product where they are not known to be few.
inline std::string tile_steps_of(const std::string &stage) { return stage + ".tile_steps"; }
// The loop over those that follow the kept ones.
inline std::string streamed_steps_of(const std::string &stage) { return stage + ".streamed_steps"; }

class LowerBf16Tiles : public Halide::Internal::IRMutator {
public:
    // with_steps: stages whose products have one step along the pairs or more. sums: where they may be added to sums
    // that hold nothing yet.
    explicit LowerBf16Tiles(std::vector<std::string> with_steps = {}, StartedSums sums = {})
        : with_steps(std::move(with_steps)), sums(std::move(sums)) {}
    // kept_steps: as in Bf16Product, of loops over any number of steps.
    explicit LowerBf16Tiles(int kept_steps) : kept_steps(kept_steps) {}

    int found = 0;  // products that became tiles; any other is left as it is

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::ProducerConsumer *op) override;

private:
    const std::vector<std::string> with_steps;
    const StartedSums sums;
    const int kept_steps = 0;
};

}  // namespace heed
