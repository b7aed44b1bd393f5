#pragma once
// The lowering passes of attention's schedules.

#include "generators/attention/stages.h"
#include "generators/lowering/passes.h"

namespace heed {

// What every schedule of these stages needs. `loops`: over blocks of keys, where the test of a block guards all of a
// step.
void add_attention_passes(Passes *passes, const AttentionConfig &config, const std::vector<std::string> &loops);

// For the x86 schedules, whose loops over blocks of keys end where a task's work ends: of both chains, one each.
Passes x86_attention_passes(const AttentionStages &stages, const AttentionConfig &config);

}  // namespace heed
