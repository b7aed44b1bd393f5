#pragma once
// Attention on tensor cores: f16 and bf16, from sm_80 on.

#include "generators/lowering/passes.h"
#include "generators/ops/attention_device.h"

namespace heed {

constexpr int tensor_threads = 128;  // of a block, where products are those of warps

AttentionDevice::Tile attention_tensor_tile(const AttentionConfig &config);
int attention_tensor_threads(const AttentionDevice::Tile &tile);
// Products of warpgroups: the tile, blocks of an SM, and bytes of tiles in shared memory.
AttentionDevice::Tile warpgroup_tile(const AttentionConfig &config);
int warpgroup_blocks(const AttentionConfig &config);
int warpgroup_tile_bytes(const AttentionDevice::Tile &tile);
// After those of sums in the state, before those of shared memory.
void add_passes_of_warpgroups(Passes &passes, const AttentionDevice &kernel);
// Whether a warp has 16 rows, not 32.
bool has_low_warps(const AttentionDevice::Tile &tile);
// Whether keys and values take turns in shared memory: with two buffers of each a block would have more than the 99 KB
// of sm_86 and sm_120.
bool takes_turns(const AttentionConfig &config, const AttentionDevice::Tile &tile);
int attention_tensor_blocks(const AttentionConfig &config);  // that an SM's registers are to hold
int attention_tensor_shared_bytes(const AttentionConfig &config);
Halide::Module attention_tensor_cuda(const std::string &name, const AttentionConfig &config,
                                     const Halide::Target &target);

}  // namespace heed
