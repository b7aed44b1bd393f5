#pragma once
// How the operations around attention run: serial, on a block of rows that the runtime hands to one of its threads.

#include "dropout_mask.h"
#include "kv_append.h"
#include "machine.h"
#include "merge_states.h"
#include "rope.h"

namespace heed {

void schedule_rope_x86(RopeKernel &kernel, const Machine &machine);
void schedule_kv_append_x86(KvAppendKernel &kernel, const Machine &machine);
void schedule_merge_states_x86(MergeStatesKernel &kernel, const Machine &machine);
void schedule_dropout_mask_x86(DropoutMaskKernel &kernel, const Machine &machine);

}  // namespace heed
