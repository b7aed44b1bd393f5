#pragma once
// How the stages of attention run. A schedule changes speed and scratch, never a bit of a result, and returns the
// lowering passes that it needs.

#include "generators/attention/stages.h"
#include "schedules/attention_passes.h"
#include "schedules/machine.h"

namespace heed {

// Every stage in memory of its own, one after the other: slow, and plain enough to serve as the oracle of the others.
Passes schedule_attention_default(AttentionStages &stages, const AttentionConfig &config);

Passes schedule_attention_prefill_x86(AttentionStages &stages, const AttentionConfig &config);

Passes schedule_attention_decode_x86(AttentionStages &stages, const AttentionConfig &config);

}  // namespace heed
