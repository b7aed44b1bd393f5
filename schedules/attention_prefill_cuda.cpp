#include "schedules/attention_cuda_tiles.h"

namespace heed {

// What bounds a step (one block of keys) of f16 on sm_90, counted, not measured. Per cycle and SM: 4 instructions, 128
// bytes of shared memory; one mma.m16n8k16 takes a tensor core 4 cycles, 6.3 as far as mma.sync gets (62 %). 255
// registers let two blocks of 4 warps share an SM.
//
//                              mma  instructions  shared memory of a block         cycles: mma, issue, shared memory
//   d64, 64 keys, Q held       128  597           4 * 32 * 512 B + 16 KB of copies  806    597    640
//   d128, 32 keys, Q reloaded  128  470           4 * 48 * 512 B + 16 KB            806    470    896
//
// 32 query rows of a warp (m_tiles = 2) use each fragment of K and V twice; with 16 rows d128 would need 1408 cycles of
// shared memory for 806 of mma. At d128 64 keys would read Q half as often (768 cycles), but spill 604 bytes. So d64
// may reach what mma.sync does, d128 90 % of it (56 % of peak).
cuda::AttentionTile prefill_tile_cuda(const AttentionConfig &config) {
    cuda::AttentionTile tile;
    const int widest = config.any_head_dim() ? max_cuda_head_dim : std::max(config.head_dim, config.head_dim_v);
    if (config.has_logit_features()) {
        tile.m_tiles = 1;
        tile.kv_block = widest <= 96 ? 32 : 16;
        if (widest > 192) tile.column_groups = 2;
    } else if (config.any_head_dim()) {
        tile.m_tiles = 1;
        tile.kv_block = 32;
    } else if (widest <= 64) {
        tile.stages = 2;
        tile.q_in_registers = true;
    } else if (widest > 192) {
        tile.m_tiles = 1;
        tile.kv_block = 32;
        tile.stages = 2;
    } else if (widest > 80) {
        tile.kv_block = 32;
        tile.stages = 2;
    }
    return tile;
}

// What bounds a step on sm_90 with products of warpgroups, in cycles of an SM: f16, d128, 128 rows and 112 keys are
// 1792 of the tensor cores (both products of two warpgroups) and, for 14336 exponentials at 16 a cycle, 896 of the
// special function unit, which computes them during the product of the values before. A thread has 64 floats of the
// sums, 56 logits and 28 words of weights: 231 registers. Measured (H100, 4096 tokens): 112 keys 475 TFLOP/s, 128 keys
// 461, 96 keys 440. At d64 a block has one warpgroup and an SM three blocks, whose steps do not wait for each other
// (158 registers): 96 keys 415 to 429 TFLOP/s, 80 keys 396 to 411, one block of two warpgroups 297.
cuda::AttentionTile warpgroup_tile_cuda(const AttentionConfig &config) {
    const int widest = std::max(config.head_dim, config.head_dim_v);
    cuda::AttentionTile tile;
    tile.warpgroups = true;
    tile.m_tiles = 1;
    tile.stages = 2;
    tile.warps = widest <= 64 ? 4 : 8;
    tile.blocks = widest > 64 ? 1 : config.has_logit_features() || config.paged ? 2 : 3;
    tile.kv_block = widest > 128 ? 64 : widest > 64 ? 112 : 96;
    // Addresses of pages and what changes logits take registers.
    if (config.paged) tile.kv_block = 96;
    if (config.has_logit_features()) tile.kv_block = widest > 96 ? 48 : 80;
    return tile;
}

}  // namespace heed
