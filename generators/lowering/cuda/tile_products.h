#pragma once
// Products of tiles on tensor cores.
//
// A schedule leaves c += float(a) * float(b) as serial loops inside a thread: c in registers, a and b of 16 bits in
// shared memory, the elements of c dealt out as a warp's mma.m16n8k16 has them (cuda/intrinsics.h): lane 4 g + q has
// rows g + 8 i and columns 8 j + 2 q and 8 j + 2 q + 1. This pass makes ldmatrix and mma of them, in f32 along k in its
// order. Halide knows no instruction that the lanes of a warp execute together. Refused: any other deal, rows of a
// matrix that are not 16 aligned bytes, products of some threads of a block only.
//
// Where k varies fastest in a and b, matrices are read as they are; a column of b may also vary fastest. a may be in
// registers, where its k is dealt out as columns of c are: elements, or floats that rounded_on_device() rounds. In c =
// select(a is -0, c, c + float(a) * float(b)) of these a term is left out whatever b is, infinity and NaN as well.
//
// b may be int8 codes, which become numbers of a's type, exactly, on the way from shared memory to registers: where a
// lane gets two elements of 16 bits it gets four neighbouring codes. Where k varies fastest in b these are four k, and
// a is in registers, its elements dealt out in fours, or in shared memory, where of each 16 k lane q's are at places
// 2 q, 2 q + 1, 8 + 2 q and 9 + 2 q; else they are columns, 16 j + 4 q and the next three of c.

#include "Halide.h"
#include "generators/lowering/cuda/lets.h"

namespace heed {

class LowerTileProducts : public Halide::Internal::IRMutator {
public:
    // threads: of a block.
    explicit LowerTileProducts(int threads) : threads(threads) {}
    int found = 0;  // nests

private:
    const int threads;
    std::set<std::string> shared;  // arrays
    Lets lets;
    bool in_some_threads = false;  // of a block

    using IRMutator::visit;
    Halide::Internal::Stmt visit(const Halide::Internal::Allocate *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::LetStmt *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::IfThenElse *op) override;
    Halide::Internal::Stmt visit(const Halide::Internal::For *op) override;
};

}  // namespace heed
