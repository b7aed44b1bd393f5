#include "schedules/cuda/attention_warpgroups.h"

namespace heed {

// What bounds a step on sm_90 with products of warpgroups, in cycles of an SM: f16, d128, 128 rows and 112 keys are
// 1792 of the tensor cores (both products of two warpgroups) and, for 14336 exponentials at 16 a cycle, 896 of the
// special function unit, which computes them during the product of the values before. A thread has 64 floats of the
// sums, 56 logits and 28 words of weights: 231 registers. Measured (H100, 4096 tokens): 112 keys 475 TFLOP/s, 128 keys
// 461, 96 keys 440. At d64 a block has one warpgroup and an SM three blocks, whose steps do not wait for each other
// (158 registers): 96 keys 415 to 429 TFLOP/s, 80 keys 396 to 411, one block of two warpgroups 297.
cuda::AttentionTile warpgroup_tile_cuda(const AttentionConfig &config) {
    const int widest = std::max(config.head_dim, config.head_dim_v);
    cuda::AttentionTile tile;
    tile.warps = widest <= 64 ? 4 : 8;
    tile.blocks = widest > 64 ? 1 : config.has_logit_features() || config.paged ? 2 : 3;
    tile.kv_block = widest > 128 ? 64 : widest > 64 ? 112 : 96;
    // Addresses of pages and what changes logits take registers.
    if (config.paged) tile.kv_block = 96;
    if (config.has_logit_features()) tile.kv_block = widest > 96 ? 48 : 80;
    return tile;
}

}  // namespace heed
