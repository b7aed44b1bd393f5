#pragma once
// Prefill on sm_90 alone, whose products are those of warpgroups: f16 and bf16.

#include "generators/attention/config.h"
#include "generators/cuda/attention_tile.h"

namespace heed {

cuda::AttentionTile warpgroup_tile_cuda(const AttentionConfig &config);

}  // namespace heed
