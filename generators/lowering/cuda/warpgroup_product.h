#pragma once
// A nest that is one product of warpgroups (LowerWarpgroupProducts). Refused: what is none.

#include "generators/lowering/cuda/product_nest.h"

namespace heed {

// What a thread does: before the product begins, to begin it, and once it has ended.
struct WarpgroupProduct {
    Halide::Internal::Stmt before, begin, after;
    Halide::Expr b;  // its address in shared memory
};

// scores = a b. rows: of a and of b in shared memory, whose panels follow each other; threads: of a block.
WarpgroupProduct scores_of_warpgroups(const ProductNest &nest, int rows_of_a, int rows_of_b, int threads);
// sums += a b. spare: the address of a panel of as many rows as b that nothing reads any more.
WarpgroupProduct sums_of_warpgroups(const ProductNest &nest, int rows_of_b, const Halide::Expr &spare, int threads);

}  // namespace heed
