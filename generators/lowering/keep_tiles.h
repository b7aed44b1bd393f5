#pragma once
// Lowering pass: register tiles keep their stack slots to themselves.
//
// Halide gives the slot of an array that is no longer needed to a later one, of any shape. LLVM keeps a tile in
// registers only where all that is ever in its slot is addressed by constants: so a tile ends where the loop that its
// storage is hoisted to ends, not after its last use.

#include <string>
#include <vector>

#include "Halide.h"

namespace heed {

class KeepTiles : public Halide::Internal::IRMutator {
public:
    // Arrays whose names begin with one of these.
    explicit KeepTiles(std::vector<std::string> tiles) : tiles(std::move(tiles)) {}

protected:
    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::Free *op) override;

private:
    const std::vector<std::string> tiles;
    bool is_tile(const std::string &name) const;
};

}  // namespace heed
