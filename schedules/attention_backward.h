#pragma once
// How the tiles of gradients of bf16 run; attention_backward_x86.cpp chooses.

#include "generators/attention/backward_tiles.h"
#include "generators/lowering/passes.h"
#include "schedules/machine.h"

namespace heed {

Passes schedule_attention_backward_amx(AttentionBackwardTilesKernel &kernel, const Machine &machine);
Passes schedule_attention_backward_dots(AttentionBackwardTilesKernel &kernel, const Machine &machine);

}  // namespace heed
