#pragma once
// The lowering passes of matrix tiles (AMX), after those of packed blocks.

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// Products become matrix tiles. Where a call changes no logit, or only adds a bias, they are woven into the softmax of
// other keys.
void add_matrix_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config);

}  // namespace heed
