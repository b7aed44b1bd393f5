#pragma once
// How the operations around attention run: serial, on a block of rows that the runtime hands to one of its threads.
// Schedules return the lowering passes that they need.

#include "generators/attention/backward.h"
#include "generators/attention/backward_tiles.h"
#include "generators/attention/probs.h"
#include "generators/lowering/passes.h"
#include "generators/ops/dropout_mask.h"
#include "generators/ops/kv_append.h"
#include "generators/ops/layer_norm.h"
#include "generators/ops/linear.h"
#include "generators/ops/merge_states.h"
#include "generators/ops/rope.h"
#include "schedules/machine.h"

namespace heed {

Passes schedule_attention_probs_x86(AttentionProbsKernel &kernel, const Machine &machine);
Passes schedule_rope_x86(RopeKernel &kernel, const Machine &machine);
Passes schedule_kv_append_x86(KvAppendKernel &kernel, const Machine &machine);
Passes schedule_merge_states_x86(MergeStatesKernel &kernel, const Machine &machine);
Passes schedule_dropout_mask_x86(DropoutMaskKernel &kernel, const Machine &machine);

BackwardTile backward_tile(const Machine &machine);
Passes schedule_attention_backward_x86(AttentionBackwardKernel &kernel, const Machine &machine);
Passes schedule_attention_backward_amx(AttentionBackwardTilesKernel &kernel, const Machine &machine);
Passes schedule_attention_backward_dots_x86(AttentionBackwardTilesKernel &kernel, const Machine &machine);

// Two vectors of columns. Rows that need no spill: up to 12 with 32 vector registers, 6 with 16.
LinearTile linear_tile(const Machine &machine, int rows);
Passes schedule_layer_norm_x86(LayerNormKernel &kernel, const Machine &machine);
Passes schedule_linear_rows_x86(LinearRowsKernel &kernel, const Machine &machine);
Passes schedule_linear_x86(LinearKernel &kernel, const Machine &machine);

}  // namespace heed
