#include "schedules/attention_passes.h"

#include <algorithm>

#include "generators/lowering/add_up_places.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/drop_tests.h"
#include "generators/lowering/fuse_loops.h"
#include "generators/lowering/hold_sums.h"
#include "generators/lowering/jam_tiles.h"
#include "generators/lowering/keep_tiles.h"
#include "generators/lowering/lane_maxima.h"
#include "generators/lowering/lane_sums.h"
#include "generators/lowering/prefetch_rows.h"
#include "generators/lowering/shorten_loops.h"
#include "generators/lowering/skip_blocks.h"
#include "generators/lowering/sum_in_place.h"
#include "generators/lowering/trim_loops.h"
#include "generators/lowering/trust_places.h"
#include "generators/lowering/wide_strides.h"
#include "generators/lowering/words.h"
#include "schedules/asked_rows.h"
#include "schedules/attention_prefetches.h"
#include "schedules/fit_rows.h"
#include "schedules/matrix_tile_passes.h"
#include "schedules/packed_block_passes.h"

namespace heed {

using namespace Halide;
using Halide::Internal::Variable;

namespace {

// The keys of a masked step that there are. Register tiles and vectors read whole units of them.
void fit_float_keys(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const BlockChain &ch = st.masked;
    const int tile = config.key_tile, vector = std::max(config.lanes, tile);
    const auto shorten = [&](int unit, int loops_per_unit, const std::string &loop, const std::vector<Func> &stages) {
        std::vector<std::string> loops;
        for (const Func &f : stages) loops.push_back(f.name() + loop);
        Expr units = (loaded(ch.first_key.name() + ".1", 0) + (unit - 1)) / unit;
        passes->add<ShortenLoops>(loops, units * loops_per_unit);
    };
    const std::string keys = ".s0." + st.k.name(), tiles = keys + ".ko";
    shorten(vector, vector / config.lanes, keys + "." + st.k.name(), {ch.slots});
    for (const std::string &copies : {keys, ".s1." + st.k.name(), ".s2." + st.k.name()}) {
        shorten(vector, vector, copies, {ch.k_rows.rows, ch.v_rows.rows});
    }
    shorten(tile, 1, tiles, {config.has_raw_logits() ? ch.raw_logits : ch.logits});
    shorten(config.lanes, 1, tiles, {ch.visible, ch.biases});
    shorten(1, 1, keys, {ch.visible, ch.kept, ch.logits, ch.weights, ch.value_weights});
}

// The maxima of a block that all rows see are taken where its logits are made, the sums where its weights are. Of 16
// registers those of AVX2 hold the constants of the weights, which sums would push out. Heads of 72, 80 and 256, Zen 5:
// 0.987 to 0.99 of the time.
void fuse_loops_over_keys(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    if (config.packs_kv()) return;
    for (const BlockChain *chain : st.chains) {
        if (chain->ranged) continue;
        const auto fuse = [&](const Func &first, const Func &second) {
            passes->add_exactly<FuseLoops>(1, "loops over keys to fuse", first.name(), second.name());
        };
        if (config.lanes > 8) fuse(chain->weights, chain->block_sum);
        if (!config.has_raw_logits()) fuse(chain->logits, chain->block_max);
    }
}

}  // namespace

void add_attention_passes(Passes *passes, const AttentionConfig &config, const std::vector<std::string> &loops) {
    if (config.score_mod.block_visible || config.sweeps()) passes->add<SkipBlocks>(loops);
    passes->add<LowerLaneSums>();
    passes->add<LowerLaneMaxima>();
    passes->add_exactly<WideStrides>(0, "strides of keys and values in 32 bits", WideStrides::of_attention());
}

Passes x86_attention_passes(const AttentionStages &st, const AttentionConfig &config) {
    Passes passes;
    const auto trim = [&](const std::string &loop) {
        passes.add_exactly<TrimLoops>(1, "loops over " + loop + " to trim", loop);
    };
    if (config.reads_bias_pairs()) {
        // In each chain Halide tests the rows, and of both kinds of squares all steps except the last one.
        size_t tests = 0;
        for (const BlockChain *chain : st.chains) {
            const PrefillBlock &of = chain->prefill;
            if (of.reads_bias_pairs()) tests += 1 + of.bias_tiles.steps.size() - 1 + of.bias_pairs.steps.size() - 1;
        }
        passes.add_exactly<DropTests>(static_cast<int>(tests), "stages of biases to make without a test",
                                      std::vector<std::string>{"bias_pairs", "bias_tiles", "bias_rows"});
    }
    std::vector<std::string> tested, places{st.packed.k_slots.name(), st.packed.v_slots.name()};
    for (const BlockChain *chain : st.chains) {
        places.push_back(chain->slots.name());
        const std::string loop = chain->steps.y.name();
        trim(loop);
        if (config.task_blocks > 1 && config.whole_keys > 0 && !chain->ranged) {
            // Halide ends the inner loop over blocks, which holds the step of the state alone, with the task's itself.
            Expr blocks = select(st.decode.reads_whole_keys, 1, loaded(st.fields.name(), task_num_blocks));
            passes.add<ShortenLoops>(std::vector<std::string>{chain->steps.z.name() + ".blocks"}, blocks);
        } else if (config.task_blocks > 1) {
            trim(chain->steps.z.name());
        }
        if (config.score_mod.block_visible || !(chain->ranged || chain->only_adds())) tested.push_back(loop);
    }
    if (config.sweeps()) trim(st.sweep.chunks.x.name());
    if (st.sweep.classes.defined()) trim(st.sweep.steps.x.name());
    if (config.paged) passes.add<TrustPlaces>(places);
    add_attention_passes(&passes, config, tested);
    if (config.rows_are_lanes()) {
        const bool in_registers = !config.bf16_tiles;
        const int row_max = config.row_block * AttentionStages::place(config, AttentionStages::row_max);
        std::vector<std::string> tiles;
        for (const BlockChain *chain : st.chains) {
            tiles.push_back(chain->product.name());
            tiles.push_back(chain->value_tile.name());
        }
        if (in_registers) passes.add<KeepTiles>(tiles);
        passes.add<LoadCarried>(st.state.name(), row_max);
        for (const BlockChain *chain : st.chains) {
            passes.add_exactly<SumInPlace>(1, "loops that add a block to the output", chain->block_out.name(),
                                           st.state.name());
        }
        fuse_loops_over_keys(&passes, st, config);
        if (in_registers || config.packs_in_steps()) fit_rows(&passes, st, config);
        if (!config.packs_kv()) fit_float_keys(&passes, st, config);
        if (in_registers) add_tile_prefetches(&passes, st, config);
    }
    if (config.packs_kv()) add_packed_blocks(&passes, st, config);
    if (config.bf16_tiles) add_matrix_tiles(&passes, st, config);
    if (config.asks_for_rows() && !config.bf16_tiles) add_asked_rows(&passes, st, config);
    if (config.rows_are_lanes() && !config.bf16_tiles) {
        // Values are neighbours. Keys are in a place each: 16 of them have more addresses than there are registers (16
        // rows of bf16, Zen 5: 2.5 times the time), and 8 of 16 registers gain nothing.
        std::vector<std::string> values;
        for (const BlockChain *chain : st.chains) values.push_back(chain->value_tile.name());
        passes.add<JamTiles>(values, config.lanes == 16 ? 8 : 4);
    }
    if (config.bf16_dots) passes.add<LowerBf16Dots>();
    if (config.packs_kv()) passes.add<LowerWords>();
    if (config.sweeps()) {
        const int keys = 4 * config.swept_keys();
        passes.add<PrefetchRows>(std::vector<std::string>{"sights_swept.s1"},
                                 std::vector<PrefetchRows::Ahead>{
                                     {"mask", "mask", keys}, {"bias", "bias", keys}, {"bias_16", "bias_16", keys}});
    }
    if (config.whole_keys > 0) {
        const std::string sums = st.full.value_tile.name(), keys = st.full.numbers.x.name();
        passes.add_exactly<HoldSums>(1, "loops over the keys of a head", sums + ".s1." + keys + ".key", sums);
        if (config.loops_over_visits()) {
            passes.add_exactly<HoldSums>(1, "loops over the keys of a visit", sums + ".s1." + keys + ".whole", sums);
        }
    }
    if (config.prefetch_keys > 0) add_row_prefetches(&passes, st, config);
    if (config.paged && config.rows_are_lanes()) passes.add<AddUpPlaces>(places);
    return passes;
}

}  // namespace heed
