#include "schedules/attention_cuda_tiles.h"

namespace heed {

// Decode is bound by memory: an H200 moves 21 bytes a cycle and SM. 64 keys of f16, d128 are 32 KB, 1530 cycles of
// them. Counted for that time, not measured: 64 mma (400 cycles of the tensor cores), some 400 instructions of each of
// 4 warps (400 cycles), 64 KB through shared memory (512 cycles). So 16 rows, a warp's share of work, are enough for a
// block, and what counts is how much is under way: at 0.8 us of latency 30 KB of each SM. A block has 35 KB under way
// or in use, and 3 share an SM of 228 KB (2 of 164 KB, 1 of 100 KB).
// int8 keys: two blocks of them have the bytes of one, and are under way while a third is used.
cuda::AttentionTile decode_tile_cuda(const AttentionConfig &config) {
    cuda::AttentionTile tile;
    tile.m_tiles = 1;
    const int widest = config.any_head_dim() ? max_cuda_head_dim : std::max(config.head_dim, config.head_dim_v);
    tile.key_groups = 4;
    tile.stages = config.has_kv_scales() ? 3 : 2;
    if (widest > 128) {
        // 16 rows of 256 columns are too many for a warp's registers, and 64 keys for the shared memory of sm_120.
        tile.warps = 8;
        tile.key_groups = 2;
        tile.column_groups = 4;
        tile.kv_block = 32;
        return tile;
    }
    tile.q_in_registers = true;
    // Addresses of pages take registers: with 4 blocks these kernels spill on sm_120.
    tile.blocks = widest <= 64 && !config.paged ? 4 : 3;
    return tile;
}

}  // namespace heed
