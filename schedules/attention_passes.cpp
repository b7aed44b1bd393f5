#include "schedules/attention_passes.h"

#include <algorithm>
#include <numeric>

#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/bf16_product.h"
#include "generators/lowering/bf16_tiles.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/hold_sums.h"
#include "generators/lowering/keep_tiles.h"
#include "generators/lowering/lane_sums.h"
#include "generators/lowering/prefetch_line.h"
#include "generators/lowering/prefetch_rows.h"
#include "generators/lowering/shorten_loops.h"
#include "generators/lowering/skip_blocks.h"
#include "generators/lowering/spread_prefetches.h"
#include "generators/lowering/sum_in_place.h"
#include "generators/lowering/trim_loops.h"
#include "generators/lowering/trim_rows.h"
#include "generators/lowering/weave_tiles.h"
#include "generators/lowering/wide_strides.h"

namespace heed {

using namespace Halide;
using Halide::Internal::const_true;
using Halide::Internal::Load;
using Halide::Internal::simplify;
using Halide::Internal::Variable;

namespace {

Expr loaded(const std::string &array, const Expr &element) {
    return Load::make(Int(32), array, element, Buffer<>(), Parameter(), const_true(),
                      Halide::Internal::ModulusRemainder());
}

// Elements from an index 0 of an axis of k or v to `index`.
Expr elements_along(const std::string &rows, const char *axis, const Expr &index) {
    return cast<int64_t>(index) * cast<int64_t>(Variable::make(UInt(64), rows + "_" + axis + "_stride"));
}

// Register tiles with rows as lanes: the rows of a block and the keys of a masked step that there are.
void fit_block(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const std::string row = st.row.name();
    // Steps with masks or biases are long: a third copy of them would take a sixth of the time to make the table.
    const int vectors = config.row_block / config.lanes, most_kept = config.per_logit() ? 1 : vectors - 1;
    TrimRows::Rows rows{
        {row + ".ro", row + "." + row}, {st.state.name()}, most_kept, config.row_block, config.lanes, {}};
    const auto heads = [](const char *tensor) { return Variable::make(Int(32), std::string(tensor) + ".extent.1"); };
    Expr of_position = config.wide_group ? heads("q") / heads("k") : Expr(1);
    const auto left_in = [&](const Func &fields) {
        return loaded(fields.name(), task_q_len) * of_position - loaded(fields.name(), task_first_row);
    };
    rows.left = left_in(st.fields);
    std::vector<std::string> steps;
    for (const BlockChain *ch : st.chains) {
        steps.push_back(ch->steps.y.name());
        for (const Func &f :
             {ch->biases, ch->visible, ch->product, ch->raw_logits, ch->logits, ch->block_max, ch->weights, ch->kept,
              ch->bf16.weight_pairs, ch->block_sum, ch->value_weights, ch->value_tile, ch->block_out}) {
            rows.stages.push_back(f.name());
        }
    }
    passes->add_exactly<TrimRows>(static_cast<int>(steps.size()), "loops over blocks of keys to trim rows in", rows,
                                  steps);
    const auto vectors_of = [&](const Expr &left) {
        Expr computed = vectors;
        for (int kept = most_kept; kept > 0; kept--) computed = select(left > kept * config.lanes, computed, kept);
        return computed;
    };
    passes->add<ShortenLoops>(rows.loops, vectors_of(rows.left));
    if (config.wide_group) {
        const std::vector<std::string> loops{row + ".result_ro"};
        passes->add<ShortenLoops>(loops, vectors_of(left_in(st.decode.merged_fields)));
    }

    // Register tiles and vectors read whole units of keys.
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
    const int together = config.bf16_dots ? 2 : 1;  // whoever takes a pair asks whether its last key is visible
    shorten(together, together, keys, {ch.visible, ch.kept, ch.logits, ch.weights, ch.value_weights});
    if (config.bf16_dots) shorten(2, 1, keys, {ch.bf16.weight_pairs, ch.bf16.v_pairs});
}

// Decode with rows as lanes reads keys and values element by element, of several rows at once, which the prefetchers of
// the cache do not follow: the products of a tile of keys ask for the keys of a later tile, and for the values of this
// one, which are read at the end of the block. What follows a block is guessed to be its neighbour. Measured, Zen 4, 2
// cores, 16 rows, without and with it: f32 of 128 elements 0.64 and 0.37 ms; bf16 of 576 0.144 and 0.116, of 128, whose
// tiles take little time, 0.209 and 0.234.
void prefetch_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    constexpr int tiles_ahead = 2;
    const BlockChain &ch = st.full;
    const int bytes = stored_type(config.kv_dtype).bytes(), line = line_bytes / bytes, tile = config.key_tile;
    const Func &logits = config.has_raw_logits() ? ch.raw_logits : ch.logits;
    const std::string tiles = logits.name() + ".s0." + st.k.name() + ".ko";
    const auto field = [fields = st.fields.name()](int n) { return loaded(fields, n); };
    const auto place = [&config, &ch, field](const Expr &key) -> std::pair<Expr, Expr> {
        const Expr last = min(key, ch.block - 1);
        if (!config.paged) return {field(task_first_key) + loaded(ch.first_key.name(), 0) + key, field(task_kv_batch)};
        return {loaded(ch.slots.name() + ".0", last) + (key - last), loaded(ch.slots.name() + ".1", last)};
    };
    const auto stream = [&](const std::string &rows, int length, int ahead) {
        const auto along = [rows](const Expr &index, const char *axis) { return elements_along(rows, axis, index); };
        const auto element = [=](const Expr &n) {
            const Expr key = (Variable::make(Int(32), tiles) + ahead) * tile + n % tile;
            const auto [slot, page] = place(key);
            return along(page, "page") + along(field(task_kv_head), "head") + along(slot, "slot") +
                   cast<int64_t>(n / tile * line);
        };
        const int step_bytes = bytes * config.product_unroll * (config.bf16_dots ? 2 : 1) * tile;
        return SpreadPrefetches::Stream{rows, bytes, element, (step_bytes + line_bytes - 1) / line_bytes,
                                        (length + line - 1) / line * tile};
    };
    passes->add<SpreadPrefetches>(ch.over_d.x.name() + ".outer", std::vector<std::string>{tiles},
                                  std::vector<SpreadPrefetches::Stream>{stream("k", config.head_dim, tiles_ahead),
                                                                        stream("v", config.head_dim_v, 0)});
}

// Prefill of floats reads elements of several rows at once, too, and of each block of keys first k, then v: while the
// logits of a block are summed, a tile of keys asks for as many rows of v, and while its outputs are, a tile of values
// for its share of the next block's k. Iterations walk over rows that are neighbours, as they are in copies of heads;
// of others, which only the few blocks of rows of a short call read, they ask for one. Two instructions of 80, where
// kernels that change logits would spill. Measured on a Xeon (family 6 model 85, 2 cores), 8 heads of 128 on 2, causal,
// time with it of that without: 2,048 tokens 0.96 to 0.97, 8,192, whose keys L2 cannot hold, 0.79 to 0.85, 16,384 0.67;
// AVX2 0.96, 0.85.
bool asks_for_blocks(const AttentionConfig &config) {
    const bool in_place = config.kv_dtype == ElementType::f32 && !config.copies_k() && !config.any_head_dim();
    const bool has_loops = config.head_dim > config.product_unroll && config.head_dim_v > config.value_tile;
    const bool has_whole_tiles = config.head_dim_v % config.value_tile == 0;
    return in_place && has_loops && has_whole_tiles && !config.wide_group && !config.changes_logits();
}

void prefetch_blocks(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const BlockChain &ch = st.full;
    const int bytes = stored_type(config.kv_dtype).bytes();
    const auto field = [fields = st.fields.name()](int n) { return loaded(fields, n); };
    // In `steps` iterations of the loop of a product in each of `tiles` iterations of another: the rows of a block from
    // `begin` on, of `length` elements.
    const auto add = [&](const std::string &rows, int length, const Expr &begin, const std::string &product,
                         const std::string &tile, int steps, int tiles) {
        const auto along = [rows](const Expr &index, const char *axis) { return elements_along(rows, axis, index); };
        const int lines = config.kv_block * ((length * bytes + line_bytes - 1) / line_bytes);
        const int at_once = (lines + steps * tiles - 1) / (steps * tiles), asked = steps * tiles * at_once;
        const Expr key = field(task_first_key) + loaded(ch.first_key.name(), 0) + begin;
        const auto element = [=](const Expr &n) {
            const Expr block = along(config.kv_block, "slot"),
                       first = Variable::make(Int(32), tile) * (steps * at_once);
            const Expr row = along(1, "slot"), neighbours = row <= 2 * length;
            return along(field(task_kv_batch), "page") + along(field(task_kv_head), "head") + along(key, "slot") +
                   cast<int64_t>(first) * block / asked + cast<int64_t>(n) * select(neighbours, block / asked, 0);
        };
        const SpreadPrefetches::Stream stream{rows, bytes, element, at_once, Expr()};
        passes->add_exactly<SpreadPrefetches>(config.row_block / config.lanes, "loops that ask for blocks",
                                              product + ".outer", std::vector{tile}, std::vector{stream});
    };
    add("v", config.head_dim_v, 0, ch.over_d.x.name(), ch.logits.name() + ".s0." + st.k.name() + ".ko",
        config.head_dim / config.product_unroll, config.kv_block / config.key_tile);
    add("k", config.head_dim, config.kv_block, ch.numbers.x.name(), ch.block_out.name() + ".s0." + st.d.name() + ".db",
        config.kv_block / config.value_unroll, config.head_dim_v / config.value_tile);
}

// Where a bias changes the logits, parts of the products of a block ask for what comes after them: its values, which no
// look at them has brought, and the rows of the next block's bias. Each of these is in another place, where prefetchers
// of the cache start anew, and values are read a few elements of a row at a time. Measured on a Xeon (family 6 model
// 85, 2 cores), 16 heads of 128, 1,024 tokens, f32, one bias for all heads: without the rows 1.02 times the time. Rows
// of a mask have a quarter of the bytes, and to ask for them took 1.01 to 1.02 times the time.
void prefetch_with_bias(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const BlockChain &ch = st.full;
    const int bursts = ch.block / config.key_tile * product_bursts(config), line = line_bytes / int{sizeof(float)};
    const std::string tile = ch.raw_logits.name() + ".s0." + st.k.name() + ".ko";
    const auto pointer = [](const std::string &buffer) {
        return reinterpret(Int(64), Variable::make(Handle(), buffer));
    };
    const auto field = [&](int n) { return loaded(st.fields.name(), n); };
    const Expr first_key = loaded(ch.first_key.name() + ".0", 0);
    // In each burst so many lines, whose addresses relative to `buffer` these are.
    std::vector<SpreadPrefetches::Stream> streams;
    const auto add = [&](const std::string &buffer, int lines, const std::function<Expr(Expr, Expr)> &byte) {
        const Expr first = Variable::make(Int(32), tile) * product_bursts(config);
        const auto of_line = [=](const Expr &n) {  // n is the number of the burst times `lines` and a constant
            return byte(cast<uint32_t>(first + simplify(n / lines)), cast<int64_t>(simplify(n % lines)));
        };
        streams.push_back({buffer, 1, of_line, lines, Expr()});
    };

    Expr asks = st.bias_on && st.prefill.bias_dense, first = cast<int64_t>(0), row_bytes = first, line_step = first;
    const auto use = [&](const std::string &tensor, int bytes, const Expr &when) {
        const auto along = [&](const Expr &index, int dimension) {
            return cast<int64_t>(index) * Variable::make(Int(32), tensor + ".stride." + std::to_string(dimension));
        };
        const Expr element = along(field(task_first_row), 1) + along(field(task_head), 2) +
                             along(field(task_sequence), 3) + first_key + ch.block;
        first = select(when, pointer(tensor) - pointer("bias") + element * bytes, first);
        row_bytes = select(when, along(bytes, 1), row_bytes);
        line_step = select(when, cast<int64_t>(line * bytes), line_step);
    };
    use("bias", 4, const_true());
    if (config.has_bias_16()) {
        use("bias_16", 2, st.bias_is_16);
        asks = st.bias_on && select(st.bias_is_16, st.prefill.bias_16_dense, st.prefill.bias_dense);
    }
    // A burst has a part of a row, or a few rows: as many lines as of floats.
    const int parts = std::max(bursts / config.row_block, 1), rows = (config.row_block + bursts - 1) / bursts;
    const int lines = (ch.block + line * parts - 1) / (line * parts);
    add("bias", rows * lines, [=](const Expr &burst, const Expr &n) {
        const Expr row = cast<int64_t>(burst / parts) * rows + simplify(n / lines);
        return first + row * row_bytes + (cast<int64_t>(burst % parts) * lines + simplify(n % lines)) * line_step;
    });

    if (!config.bf16_dots && !config.copies_v()) {
        const auto along = [](const Expr &index, const char *axis) {
            return elements_along("v", axis, index) * int{sizeof(float)};
        };
        const Expr block = along(field(task_kv_batch), "page") + along(field(task_kv_head), "head") +
                           along(field(task_first_key) + first_key, "slot");
        const int all = ch.block * ((config.head_dim_v + line - 1) / line), at_once = (all + bursts - 1) / bursts;
        const Expr step = along(ch.block, "slot") / (bursts * at_once);
        add("v", at_once, [=](const Expr &burst, const Expr &n) {
            return block + cast<int64_t>(burst) * (step * at_once) + n * step;
        });
    }
    // Of the step there are two copies (TrimRows), of which either computes other rows.
    passes->add_exactly<SpreadPrefetches>(2, "loops that ask for a bias and values", ch.over_d.x.name() + ".outer.burst",
                                          std::vector<std::string>{tile}, streams, asks);
}

// Where logits are products as they are, the weights of keys are made while the tiles of the next keys multiply.
void add_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const BlockChain &ch = st.full;
    const bool weaves = !config.changes_logits();
    std::vector<std::string> marked;
    if (weaves) marked = {ch.product.name(), ch.block_out.name()};
    passes->add_exactly<LowerBf16Tiles>(static_cast<int>(2 * st.chains.size()),
                                        "products of bf16 that become matrix tiles", marked);
    if (!weaves) return;
    WeaveTiles::Step step;
    step.loop = st.state.name() + ".s" + std::to_string(st.chains.size()) + "." + ch.steps.y.name();
    step.product = ch.product.name();
    step.maxima = ch.bf16.max_parts.name();
    step.reference = ch.bf16.reference.name();
    step.state = st.state.name();
    step.again_end = ch.bf16.again_end.name();
    step.weights = ch.bf16.weight_pairs.name();
    step.outputs = ch.block_out.name();
    step.sums = ch.bf16.sum_parts.name();
    step.exact_sum = ch.bf16.exact_sum.name();
    step.may_keep = Bf16Block::fits_unit(Variable::make(Float(32), "scale"));
    step.folded_product = 2 * 2 * tile_edge * config.row_block;
    step.huge_reference = Bf16Block::huge_reference;
    step.large_weight = Bf16Block::large_weight;
    passes->add_exactly<WeaveTiles>(1, "loops over blocks of keys to weave", step);
}

}  // namespace

int product_bursts(const AttentionConfig &config) {
    const bool asks = config.phase == Phase::prefill && config.has_bias && !config.bf16_tiles && !config.any_head_dim();
    return asks ? std::gcd(config.query_elements() / config.product_unroll, 8) : 0;
}

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
        if (config.task_blocks > 1 && config.whole_keys > 0 && !chain->ranged) {
            // Halide ends the inner loop over blocks, which holds the step of the state alone, with the task's itself.
            Expr blocks = select(st.decode.reads_whole_keys, 1, loaded(st.fields.name(), task_num_blocks));
            passes.add<ShortenLoops>(std::vector<std::string>{chain->steps.z.name() + ".blocks"}, blocks);
        } else if (config.task_blocks > 1) {
            trim(chain->steps.z.name());
        }
        if (config.score_mod.block_visible || !chain->ranged) tested.push_back(loop);
    }
    if (config.sweeps()) trim(st.sweep.chunks.x.name());
    if (st.sweep.classes.defined()) trim(st.sweep.steps.x.name());
    add_attention_passes(&passes, config, tested);
    if (config.rows_are_lanes() && !config.bf16_tiles) {
        std::vector<std::string> tiles;
        for (const BlockChain *chain : st.chains) {
            tiles.push_back(chain->product.name());
            tiles.push_back(chain->value_tile.name());
        }
        passes.add<KeepTiles>(tiles);
        fit_block(&passes, st, config);
        const bool slow_tiles = config.kv_dtype == ElementType::f32 || config.head_dim > 256;
        if (config.wide_group && !config.any_head_dim() && slow_tiles) prefetch_tiles(&passes, st, config);
        if (asks_for_blocks(config)) prefetch_blocks(&passes, st, config);
        if (product_bursts(config) > 0) prefetch_with_bias(&passes, st, config);
    }
    if (config.packs_kv()) {
        const int row_max = config.row_block * AttentionStages::place(config, AttentionStages::row_max);
        passes.add<LoadCarried>(st.state.name(), row_max);
        for (const BlockChain *chain : st.chains) {
            passes.add_exactly<SumInPlace>(1, "loops that add a block to the output", chain->block_out.name(),
                                           st.state.name());
        }
        add_tiles(&passes, st, config);
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
    if (config.whole_keys > 0) {
        const std::string sums = st.full.value_tile.name(), keys = st.full.numbers.x.name();
        passes.add_exactly<HoldSums>(1, "loops over the keys of a head", sums + ".s1." + keys + ".key", sums);
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
            // Loops over heads of whole keys, which the prefetchers of the cache follow, ask for nothing.
            loops.push_back(chain->decode.dots.name() + ".s0." + st.k.name() + ".ko");
            loops.push_back(chain->value_tile.name() + ".s1." + chain->numbers.x.name() + ".key");
        }
        passes.add<PrefetchRows>(loops, std::vector<PrefetchRows::Ahead>{ahead("k"), ahead("v")});
    }
    return passes;
}

}  // namespace heed
