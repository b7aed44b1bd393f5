#pragma once
// Lowering pass: two register tiles at once, where one has too few sums.
//
// A sum waits for its last FMA, of which a core starts two each cycle: fewer than eight to twelve sums leave its units
// idle. A tile of all vectors of rows has 24, the copy of a step for a single vector a third of them (trim_rows.h):
//
//   for tile { sums = 0; for d { sums += .. }; .. = sums }
//
// becomes
//
//   for pair { sums = 0; others = 0; for d { sums += ..; others += .. }; .. = sums; .. = others }
//
// Each sum adds up as before.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class JamTiles : public Halide::Internal::IRMutator {
public:
    // Loops over tiles, an even number, whose sums are in arrays with names that begin with one of `tiles`, at most
    // `most_sums` vectors.
    JamTiles(std::vector<std::string> tiles, int most_sums) : tiles(std::move(tiles)), most_sums(most_sums) {}

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;

private:
    const std::vector<std::string> tiles;
    const int most_sums;
};

}  // namespace heed
