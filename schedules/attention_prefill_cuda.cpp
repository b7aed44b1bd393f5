#include "attention_prefill_cuda.h"

namespace heed {

cuda::PrefillTile prefill_tile_cuda(const AttentionConfig &config, bool tensor_cores) {
    cuda::PrefillTile tile;
    tile.tensor_cores = tensor_cores;
    const int widest =
        config.any_head_dim() ? AttentionConfig::max_cuda_head_dim : std::max(config.head_dim, config.head_dim_v);
    const bool gathers = config.modifies_logits() || config.per_logit();
    if (!tensor_cores) {
        // Shared memory: 64 KiB on sm_75. f32 at depth 256: 32 rows of Q, 8 of K and V, 50 KB.
        tile.m_tiles = 1;
        tile.kv_block = widest <= 128 ? 32 : config.dtype == ElementType::f32 ? 8 : 16;
        if (widest > 128) tile.warps = 2;
    } else if (gathers) {
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
