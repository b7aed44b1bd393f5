#pragma once
// The lowering passes of packed values, and keys (AttentionConfig::packs_kv).

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// Numbers of vectors of rows, but all of them, for which a step has a copy of its own.
int copies_for_fewer_rows(const AttentionConfig &config);

// Sums of products go straight to the state. Loops end with the rows and keys that there are.
void add_packed_blocks(Passes *passes, const AttentionStages &st, const AttentionConfig &config);

}  // namespace heed
