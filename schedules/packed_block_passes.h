#pragma once
// The lowering passes of packed values, and keys (AttentionConfig::packs_kv).

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// Loops end with the rows and keys that there are.
void add_packed_blocks(Passes *passes, const AttentionStages &st, const AttentionConfig &config);

}  // namespace heed
