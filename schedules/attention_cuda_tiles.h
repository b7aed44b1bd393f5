#pragma once
// How attention runs on NVIDIA GPUs.

#include "generators/attention/config.h"
#include "generators/cuda/attention_tile.h"

namespace heed {

// On tensor cores (f16 and bf16, sm_80).
cuda::AttentionTile prefill_tile_cuda(const AttentionConfig &config);
// How prefill runs on sm_90: its products are those of warpgroups.
cuda::AttentionTile warpgroup_tile_cuda(const AttentionConfig &config);
cuda::AttentionTile decode_tile_cuda(const AttentionConfig &config);

}  // namespace heed
