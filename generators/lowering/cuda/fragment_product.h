#pragma once
// A nest that is one product of a warp, in matrices of 8 rows of 16 bytes (LowerTileProducts). Refused: what is none.

#include "generators/lowering/cuda/product_nest.h"

namespace heed {

// threads: of a block.
Halide::Internal::Stmt fragment_product(const ProductNest &nest, int threads);

}  // namespace heed
