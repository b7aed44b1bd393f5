#pragma once
// How attention runs on NVIDIA GPUs.

#include "attention_config.h"
#include "cuda/attention_tile.h"

namespace heed {

// On tensor cores (f16 and bf16, sm_80), or in f32 arithmetic.
cuda::AttentionTile prefill_tile_cuda(const AttentionConfig &config, bool tensor_cores);
cuda::AttentionTile decode_tile_cuda(const AttentionConfig &config, bool tensor_cores);

}  // namespace heed
