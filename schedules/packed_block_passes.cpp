#include "schedules/packed_block_passes.h"

#include <string>
#include <vector>

#include "generators/lowering/bf16_product.h"
#include "generators/lowering/fuse_loops.h"
#include "generators/lowering/shorten_loops.h"
#include "schedules/attention_prefetches.h"

namespace heed {

using namespace Halide;
using Halide::Internal::Variable;

namespace {

// Blocks are packed up to their last key.
void fit_packed_blocks(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const PackedBlocks &p = st.packed;
    const auto loop = [](const Func &f, int stage, const std::string &var) {
        return f.name() + ".s" + std::to_string(stage) + "." + var;
    };
    // `of`, a loop over units of so many keys: those in the block of a task of `tasks`.
    const auto shorten = [&](const std::string &of, const Func &tasks, int stage, int unit, int loops_per_unit = 1) {
        const Expr task = Variable::make(Int(32), loop(tasks, stage, p.head.name() + ".packed_task"));
        const Expr line = cast<int64_t>(task / Variable::make(Int(32), "k.extent.1")) *
                          cast<int64_t>(Variable::make(Int(32), "key_blocks.stride.1"));
        const Expr end = loaded("key_blocks", line + block_kv_len), first = loaded("key_blocks", line + block_first);
        const Expr units = (clamp(end - first, 0, config.kv_block) + (unit - 1)) / unit;
        passes->add<ShortenLoops>(std::vector<std::string>{of}, units * loops_per_unit);
    };
    const bool in_tiles = config.bf16_tiles;
    const int tile = in_tiles ? packed_unit : config.lanes, pairs = in_tiles ? packed_unit : 2;
    const int stages_of_k = config.packs_k() ? p.k.num_update_definitions() + 1 : 0;
    for (int stage = 0; stage < stages_of_k; stage++) {
        shorten(loop(p.k, stage, st.k.name()), p.k, stage, tile, tile);
    }
    shorten(loop(p.v, 0, (in_tiles ? st.c : st.p).name()), p.v, 0, pairs);
    shorten(loop(p.exponents, 1, (in_tiles ? p.over_v.y : p.over_v.z).name()), p.nonfinite, 0, pairs);
    const std::string of_slots = st.k.name() + "." + st.k.name();
    if (p.v_slots.defined()) shorten(loop(p.v_slots, 0, of_slots), p.v, 0, tile, tile / config.lanes);
    if (p.k_slots.defined()) shorten(loop(p.k_slots, 0, of_slots), p.k, stages_of_k - 1, tile, tile / config.lanes);
    passes->add_exactly<FuseLoops>(1, "loops over packed blocks to fuse", p.v.name(), p.nonfinite.name());
}

// A masked step of packed keys computes the units that have a key which some row sees. The other ones would add
// nothing. The step's number of keys lives until its last stage, exact_sum, has read it.
void fit_keys(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const BlockChain &ch = st.masked;
    const int unit = config.masked_unit();
    const auto parts = [](const Expr &keys, int of) { return (keys + (of - 1)) / of; };
    const Expr units = parts(loaded(ch.first_key.name() + ".1", 0), unit), computed = units * unit;
    const auto end = [&](const Func &f, const std::string &loop, const Expr &extent) {
        passes->add<ShortenLoops>(std::vector<std::string>{f.name() + loop}, extent);
    };
    const auto over = [](int stage, const RVar &v) { return ".s" + std::to_string(stage) + "." + v.name(); };
    const std::string keys = ".s0." + st.k.name(), squares = keys + ".ko";
    const Bf16Block &b = ch.bf16;
    if (config.packs_in_steps()) {
        const PackedBlocks &p = ch.packed;
        for (const std::string &copies : {keys, ".s1." + st.k.name()}) end(p.k, copies, computed);
        end(p.v, ".s0." + (config.bf16_tiles ? st.c : st.p).name(), config.bf16_tiles ? units : computed / 2);
        end(p.exponents, over(1, config.bf16_tiles ? p.over_v.y : p.over_v.z),
            config.bf16_tiles ? units : computed / 2);
    }
    end(ch.slots, keys + "." + st.k.name(), parts(computed, config.lanes));
    end(ch.visible, squares, parts(computed, config.keys_of_mask_square()));
    Expr bias_on = Variable::make(Int(32), "bias_form") != no_bias;
    end(ch.biases, squares, select(bias_on, parts(computed, tile_edge), 0));
    for (const BlockChain *chain : {&st.full, &st.added}) {
        end(chain->biases, squares, select(bias_on, chain->block / packed_unit, 0));  // two squares at once
    }
    if (config.bf16_tiles) {
        end(ch.product, ".s1." + st.k.name() + ".ko", units);
        end(ch.block_out, over(1, ch.numbers.y), units);
    } else {
        end(ch.raw_logits, squares, computed / config.key_tile);
    }
    for (const Func &f : {ch.visible, ch.logits}) end(f, keys, computed);
    end(b.max_parts, over(1, b.part_keys.x), computed / Bf16Block::parts);
    end(b.weight_pairs, keys, computed / 2);
    end(b.weight_pairs, over(1, b.again.x), computed / 2);
    end(b.sum_parts, over(1, b.pairs.x), computed / 2 / Bf16Block::parts);
    for (const BlockChain *chain : st.chains) {
        const Bf16Block &of = chain->bf16;
        end(of.exact_sum, over(2, of.exact_again.x), 2 * loaded(of.again_end.name(), 0));
        if (!of.v_numbers.defined()) continue;
        end(of.v_numbers, ".s0." + st.c.name(), parts(loaded(chain->prefill.nonfinite_end.name(), 0), packed_unit));
    }
}

}  // namespace

void add_packed_blocks(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    if (config.packs_first()) fit_packed_blocks(passes, st, config);
    fit_keys(passes, st, config);
}

}  // namespace heed
