// Attention whose products are those of warpgroups: its tiles, and the passes in which it differs.
#include <algorithm>

#include "generators/cuda/warpgroup.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/warpgroup_products.h"
#include "schedules/cuda/attention_tensor.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

// What bounds a step on sm_90 with products of warpgroups, in cycles of an SM: f16, d128, 128 rows and 112 keys are
// 1792 of the tensor cores (both products of two warpgroups) and, for 14336 exponentials at 16 a cycle, 896 of the
// special function unit, which computes them during the product of the values before. A thread has 64 floats of the
// sums, 56 logits and 28 words of weights: 248 registers. At d64 a block has one warpgroup and an SM three blocks,
// whose steps do not wait for each other (165 registers). Measured of a program with these tiles and this order of
// products (H100, 4096 tokens): 112 keys 475 TFLOP/s, 128 keys 461, 96 keys 440; at d64 96 keys 415 to 429, 80 keys 396
// to 411, one block of two warpgroups 297.
AttentionDevice::Tile warpgroup_tile(const AttentionConfig &config) {
    const int k = (config.head_dim + 15) / 16 * 16, v = (config.head_dim_v + 15) / 16 * 16, widest = std::max(k, v);
    const int chunk = chunk_of(config.kv_dtype), rows = widest <= 64 ? 64 : 128;
    int keys = widest > 128 ? 64 : widest > 64 ? 112 : 96;
    // Addresses of pages and what changes logits take registers.
    if (config.paged) keys = 96;
    if (config.has_logit_features()) keys = widest > 192 ? 32 : widest > 96 ? 48 : 80;
    AttentionDevice::Tile tile = {{rows, keys, chunk, k / chunk, false}, keys, v, 4, true};
    tile.most_growth = 8;
    tile.in_warpgroups = true;
    return tile;
}

int warpgroup_blocks(const AttentionConfig &config) {
    if (std::max(config.head_dim, config.head_dim_v) > 64) return 1;
    return config.has_logit_features() || config.paged ? 2 : 3;
}

int warpgroup_tile_bytes(const AttentionDevice::Tile &tile) {
    const int of_k = row_in_panels(tile.products.width * tile.products.chunks), of_v = row_in_panels(tile.columns);
    return 2 * (tile.products.rows * of_k + 2 * tile.products.columns * (of_k + of_v));
}

// Values of a step are multiplied while the exponentials of the next one are computed.
void add_passes_of_warpgroups(Passes &passes, const AttentionDevice &kernel) {
    const std::string queries = kernel.product.x_tile.name(), keys = kernel.product.w_tile.name(),
                      values = kernel.values.name();
    const AttentionDevice::Tile &tile = kernel.tile;
    const int of_k = row_in_panels(tile.products.width * tile.products.chunks), of_v = row_in_panels(tile.columns);
    passes.add_exactly<StoreInPanels>(3, "arrays in panels",
                                      std::map<std::string, int>{{queries, of_k}, {keys, of_k}, {values, of_v}});
    passes.add_exactly<PipelineCopies>(2, "loops over keys that copy ahead", of_k > 128, true, "",
                                       StageDelay{kernel.block_out.name(), kernel.product.sum.name(),
                                                  cuda::wait_products(0), cuda::copies_for_products()});
    const int rows = tile.products.rows, columns = tile.products.columns;
    // Scores of the first step are before the loop, and the product of the last step's values is after it: with the
    // loop's two that makes four. The repetition has one of each.
    passes.add_exactly<LowerWarpgroupProducts>(
        6, "products", std::map<std::string, int>{{queries, rows}, {keys, columns}, {values, columns}},
        attention_tensor_threads(tile));
    passes.add<PrivateRegisters>();
    passes.add_exactly<NamedSums>(1, "arrays of sums", kernel.state.name());
}

}  // namespace heed
