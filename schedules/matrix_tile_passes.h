#pragma once
// The lowering passes of kernels with matrix tiles (AMX).

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// For packed keys and values. Products become matrix tiles. Where a call changes no logit, or only adds a bias, they
// are woven into the softmax of other keys. Loops end with the rows and keys that there are.
void add_matrix_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config);

}  // namespace heed
