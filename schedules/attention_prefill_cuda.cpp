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
    const bool gathers = config.has_softcap || config.has_alibi || config.has_bias || config.has_mask;
    if (gathers) {
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

}  // namespace heed
