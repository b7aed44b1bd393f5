#include "schedules/attention_passes.h"

#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/bf16_tiles.h"
#include "generators/lowering/keep_tiles.h"
#include "generators/lowering/lane_sums.h"
#include "generators/lowering/prefetch_rows.h"
#include "generators/lowering/skip_blocks.h"
#include "generators/lowering/trim_loops.h"

namespace heed {

void add_attention_passes(Passes *passes, const AttentionConfig &config, const std::vector<std::string> &loops) {
    if (config.score_mod.block_visible) passes->add<SkipBlocks>(loops);
    passes->add<LowerLaneSums>();
}

Passes x86_attention_passes(const AttentionStages &st, const AttentionConfig &config) {
    Passes passes;
    const std::vector<std::string> loops = {st.full.steps.y.name(), st.masked.steps.y.name()};
    for (const std::string &loop : loops) passes.add_exactly<TrimLoops>(1, "loops over " + loop + " to trim", loop);
    add_attention_passes(&passes, config, loops);
    if (config.phase == Phase::prefill && !config.bf16_tiles) {
        std::vector<std::string> tiles;
        for (const BlockChain *chain : {&st.full, &st.masked}) {
            tiles.push_back(chain->product.name());
            tiles.push_back(chain->value_tile.name());
        }
        passes.add<KeepTiles>(tiles);
    }
    if (config.bf16_tiles) {
        passes.add_exactly<LowerBf16Tiles>(4, "products of bf16 that become matrix tiles");
        passes.add_exactly<LowerBf16Dots>(0, "products of bf16 that become no matrix tiles");
    } else if (config.bf16_dots) {
        passes.add<LowerBf16Dots>();
    }
    if (config.prefetch_keys > 0) {
        const auto ahead = [&](const std::string &rows) {
            return PrefetchRows::Ahead{rows, rows, st.decode.prefetched_keys * PrefetchRows::stride(rows)};
        };
        passes.add<PrefetchRows>(std::vector<std::string>{st.full.decode.dots.name() + ".s0." + st.k.name(),
                                                          st.full.value_tile.name() + ".s1"},
                                 std::vector<PrefetchRows::Ahead>{ahead("k"), ahead("v")});
    }
    return passes;
}

}  // namespace heed
