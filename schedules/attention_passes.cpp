#include "schedules/attention_passes.h"

#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/bf16_tiles.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/keep_tiles.h"
#include "generators/lowering/lane_sums.h"
#include "generators/lowering/prefetch_rows.h"
#include "generators/lowering/skip_blocks.h"
#include "generators/lowering/sum_in_place.h"
#include "generators/lowering/trim_loops.h"
#include "generators/lowering/wide_strides.h"

namespace heed {

using namespace Halide;
using Halide::Internal::Variable;

void add_attention_passes(Passes *passes, const AttentionConfig &config, const std::vector<std::string> &loops) {
    if (config.score_mod.block_visible || config.sweeps()) passes->add<SkipBlocks>(loops);
    passes->add<LowerLaneSums>();
    passes->add_exactly<WideStrides>(0, "strides of keys and values in 32 bits", WideStrides::of_attention());
}

Passes x86_attention_passes(const AttentionStages &st, const AttentionConfig &config) {
    Passes passes;
    const auto trim = [&](const std::string &loop) {
        passes.add_exactly<TrimLoops>(1, "loops over " + loop + " to trim", loop);
    };
    std::vector<std::string> tested;
    for (const BlockChain *chain : st.chains) {
        const std::string loop = chain->steps.y.name();
        trim(loop);
        if (config.task_blocks > 1) trim(chain->steps.z.name());
        if (config.score_mod.block_visible || !chain->ranged) tested.push_back(loop);
    }
    if (config.sweeps()) trim(st.sweep.chunks.x.name());
    if (st.sweep.classes.defined()) trim(st.sweep.steps.x.name());
    add_attention_passes(&passes, config, tested);
    if (config.phase == Phase::prefill && !config.bf16_tiles) {
        std::vector<std::string> tiles;
        for (const BlockChain *chain : st.chains) {
            tiles.push_back(chain->product.name());
            tiles.push_back(chain->value_tile.name());
        }
        passes.add<KeepTiles>(tiles);
    }
    if (config.packs_kv()) {
        const int row_max = config.row_block * AttentionStages::place(config, AttentionStages::row_max);
        passes.add<LoadCarried>(st.state.name(), row_max);
        for (const BlockChain *chain : st.chains) {
            passes.add_exactly<SumInPlace>(1, "loops that add a block to the output", chain->block_out.name(),
                                           st.state.name());
        }
        passes.add_exactly<LowerBf16Tiles>(static_cast<int>(2 * st.chains.size()),
                                           "products of bf16 that become matrix tiles");
        passes.add<LowerBf16Dots>();
    } else if (config.bf16_dots) {
        passes.add<LowerBf16Dots>();
    }
    if (config.sweeps()) {
        const int keys = 4 * config.swept_keys();
        passes.add<PrefetchRows>(std::vector<std::string>{"sights_swept.s1"},
                                 std::vector<PrefetchRows::Ahead>{
                                     {"mask", "mask", keys}, {"bias", "bias", keys}, {"bias_16", "bias_16", keys}});
    }
    if (config.prefetch_keys > 0) {
        const auto ahead = [&](const std::string &rows) {
            Expr stride = cast<int64_t>(Variable::make(UInt(64), rows + "_slot_stride"));
            PrefetchRows::Ahead next{rows, rows, st.decode.prefetched_keys * stride};
            if (config.looks_up_ahead()) {
                next.table = st.full.slots.name();
                next.keys = config.kv_block;
            }
            return next;
        };
        std::vector<std::string> loops;
        for (const BlockChain *chain : st.chains) {
            if (chain->ranged) continue;
            loops.push_back(chain->decode.dots.name() + ".s0." + st.k.name());
            loops.push_back(chain->value_tile.name() + ".s1");
        }
        passes.add<PrefetchRows>(loops, std::vector<PrefetchRows::Ahead>{ahead("k"), ahead("v")});
    }
    return passes;
}

}  // namespace heed
