// Tiles of attention on tensor cores, and what a block of them takes of an SM.
#include <algorithm>

#include "generators/common/device_memory.h"
#include "schedules/cuda/attention_tensor.h"
#include "schedules/cuda/operation.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

namespace {

// Elements of a row in tiles: whole products, zeros after the last one.
int padded_elements(const AttentionConfig &config, int head_dim) {
    const int multiple = config.has_kv_scales() ? 32 : 16;
    return (config.any_head_dim() ? max_cuda_head_dim : head_dim + multiple - 1) / multiple * multiple;
}

}  // namespace

int attention_tensor_threads(const AttentionDevice::Tile &tile) {
    return tile.in_warpgroups ? 2 * tile.products.rows : tensor_threads;
}

bool has_low_warps(const AttentionDevice::Tile &tile) {
    return tile.in_warpgroups || tile.products.rows == tensor_threads / 2;
}

bool takes_turns(const AttentionConfig &config, const AttentionDevice::Tile &tile) {
    if (config.has_kv_scales()) return false;
    return config.has_gqa ? !tile.holds_queries : tile.columns > 128 && tile.products.columns == 32;
}

AttentionDevice::Tile attention_tensor_tile(const AttentionConfig &config) {
    if (config.in_warpgroups) return warpgroup_tile(config);
    const int k = padded_elements(config, config.head_dim), v = padded_elements(config, config.head_dim_v);
    // States of parts take the place of keys, which have no fewer columns.
    const int widest = std::max(k, v), elements = config.has_gqa ? widest : k;
    const int chunk = chunk_of(config.kv_dtype), chunks = elements / chunk;
    // A warp has 16 rows and a quarter of a step's keys, or half of them.
    if (config.has_gqa) {
        // Keys whose copies under way are some 16 KB.
        const bool is_plain_of_codes = config.has_kv_scales() && config.is_plain();
        const int keys = is_plain_of_codes && widest <= 64 ? 128 : 64;
        AttentionDevice::Tile tile = {{tensor_threads / 2, keys, chunk, chunks, false}, keys, v, 4, true};
        tile.parts = config.wide_group ? 2 : 4;
        // More columns, and dropout of codes, need the registers.
        tile.holds_queries = widest <= (config.has_kv_scales() && config.has_dropout ? 64 : 128);
        const bool in_halves = (config.has_kv_scales() && keys == 64) || takes_turns(config, tile);
        tile.columns_handed_over = in_halves ? v / 2 : v;
        return tile;
    }
    int rows = tensor_threads, keys = widest <= 64 ? 64 : 32;
    if (config.has_logit_features() || config.has_dropout || (config.has_score_mod() && config.has_kv_scales())) {
        // Half as many: a change takes up to 60 instructions for each of a thread's logits, all in a row. Each thread
        // copies some of 16 keys where their rows are 8, 16 or 24 chunks.
        const bool in_eights = elements % (8 * chunk) == 0 && v % (8 * chunk) == 0;
        rows /= 2;
        keys = in_eights || widest > 128 ? keys / 2 : 32;
    } else if (config.has_score_mod()) {
        // Half as many logits of a thread, which are all asked in a row.
        (widest <= 64 ? keys : rows) /= 2;
    }
    if (widest > 192 || v > 128) {
        // A thread of 32 rows would have 192 floats of the output.
        rows = tensor_threads / 2;
        // Two buffers of 16 keys where 32 in turns spill 96 to 116 bytes: in steps that a score function may pass over.
        keys = config.score_mod.block_visible && !config.any_head_dim() ? 16 : 32;
    }
    AttentionDevice::Tile tile = {{rows, keys, chunk, chunks, false}, keys, v, 4, true};
    tile.most_growth = 8;
    tile.holds_queries = keys == 64;
    return tile;
}

int attention_tensor_blocks(const AttentionConfig &config) {
    if (config.in_warpgroups) return warpgroup_blocks(config);
    const AttentionDevice::Tile tile = attention_tensor_tile(config);
    // Score functions need registers of their own: of 128 columns in pages they spilled 12 to 60 bytes with 3 blocks.
    const bool is_scored = config.has_score_mod();
    if (config.has_gqa) {
        // Kernels of 64 columns in pages spill on sm_120 with 4 blocks, `wide` ones of 128 columns on sm_80 with 3.
        const int widest = tile.products.width * tile.products.chunks;
        if (widest > 64) return config.wide_group || widest > 128 || is_scored ? 2 : 3;
        return config.paged || is_scored ? 3 : 4;
    }
    if (!has_low_warps(tile) || tile.columns > 128) return 1;
    return is_scored ? 2 : 3;
}

int attention_tensor_shared_bytes(const AttentionConfig &config) {
    const AttentionDevice::Tile tile = attention_tensor_tile(config);
    const int of_user = (config.has_score_mod() ? 6 : 0) + (config.score_mod.block_visible ? 2 + 8 : 0);
    const int numbers = 16 * (sequence_padding + 4 + of_user);
    const int of_rows = 16 * tile.products.rows;
    const bool asks_user = config.score_mod.logit || config.score_mod.visible;
    const int of_query = 8 * (config.has_mask + config.has_bias + config.has_alibi + config.has_dropout + asks_user);
    const bool has_codes = config.has_kv_scales();
    const int bytes = has_codes ? 1 : 2, of_key = has_codes ? 20 : 16, keys = tile.products.columns;
    const int of_keys = config.paged ? (tile.in_warpgroups ? 4 : 2) * of_key * keys + (tile.parts > 1 ? 2 * 16 : 0) : 0;
    if (tile.in_warpgroups) return warpgroup_tile_bytes(tile) + numbers + of_rows + of_query * tile.queries() + of_keys;
    const int of_parts = (has_codes && tile.columns_handed_over == tile.columns ? 12 : 4 * 8 + 12) * tile.products.rows;
    // Queries that a thread has elements of are where keys are copied later.
    const bool keeps_queries = tile.parts == 1 || !tile.holds_queries;
    const int buffers = takes_turns(config, tile) ? 1 : 2;
    const int of_scales = has_codes ? 2 * 2 * 4 * keys : 0;
    return numbers + of_rows + of_query * tile.queries() + of_keys + of_scales + (tile.parts > 1 ? of_parts : 0) +
           (keeps_queries ? shared_bytes_of(tile.products, tile.queries()) : 0) +
           buffers * (shared_bytes_of(tile.products, keys, bytes) + tile.chunk * (bytes * tile.columns + 16));
}

}  // namespace heed
