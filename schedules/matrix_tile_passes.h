#pragma once
// The lowering passes of kernels with matrix tiles (AMX).

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// Of packed keys and values: products on matrix tiles, woven into the softmax of other keys where the call changes no
// logit but by a bias, and loops that end with the rows and keys that there are.
void add_matrix_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config);

}  // namespace heed
