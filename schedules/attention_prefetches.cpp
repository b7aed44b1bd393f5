#include "schedules/attention_prefetches.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "generators/lowering/prefetch_line.h"
#include "generators/lowering/prefetch_rows.h"
#include "generators/lowering/spread_prefetches.h"
#include "schedules/fit_rows.h"

namespace heed {

using namespace Halide;
using Halide::Internal::const_true;
using Halide::Internal::Load;
using Halide::Internal::make_const;
using Halide::Internal::simplify;
using Halide::Internal::Variable;

namespace {

// Elements from an index 0 of an axis of k or v to `index`.
Expr elements_along(const std::string &rows, const char *axis, const Expr &index) {
    return cast<int64_t>(index) * cast<int64_t>(Variable::make(UInt(64), rows + "_" + axis + "_stride"));
}

int lines_of(int elements, int bytes) { return (elements * bytes + line_bytes - 1) / line_bytes; }

// Decode with rows as lanes reads keys and values element by element, of several rows at once, which the prefetchers of
// the cache do not follow. So each burst of the products of a tile of keys asks for a row of keys of the next tile, or
// a part of it, and for one of values: of this block, which are read at its end. Where they are copied or packed at its
// beginning, it asks for those of the next block. What follows a block is guessed to be its neighbour.
bool asks_for_tiles(const AttentionConfig &config) {
    return config.wide_group && !config.bf16_tiles && !config.any_head_dim();
}

// How many bursts a tile of keys has, and the rows of keys, or the parts of one, that each asks for: of long rows what
// three steps of the product, or a few more, leave time for. Measured, Zen 5, 2 threads, 16 rows, from memory: f32 of
// 576 elements in 12 parts 0.61 ms, in 3 0.84; bf16 in 3 parts 0.351, in one 0.371; f32 of 128 elements in one part
// 0.30, in two 0.38.
struct TileBursts {
    int rows = 1, parts = 1, count = 1;
};

TileBursts tile_bursts(const AttentionConfig &config) {
    const int steps = config.query_elements() / config.product_unroll, bytes = stored_type(config.kv_dtype).bytes();
    TileBursts bursts;
    if (steps % config.key_tile != 0) {
        bursts.count = std::gcd(steps, config.key_tile);
        bursts.rows = config.key_tile / bursts.count;
        return bursts;
    }
    if (lines_of(config.head_dim, bytes) + lines_of(config.head_dim_v, bytes) > 16) {
        const int steps_of_row = steps / config.key_tile;
        int burst = std::min(3, steps_of_row);
        while (steps_of_row % burst != 0) burst++;
        bursts.parts = steps_of_row / burst;
    }
    bursts.count = bursts.parts * config.key_tile;
    return bursts;
}

void prefetch_tiles(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const BlockChain &ch = st.full;
    const int bytes = stored_type(config.kv_dtype).bytes(), tile = config.key_tile, tiles_of_block = ch.block / tile;
    const TileBursts bursts = tile_bursts(config);
    const Func &logits = config.has_raw_logits() ? ch.raw_logits : ch.logits;
    const std::string tiles = logits.name() + ".s0." + st.k.name() + ".ko";
    const auto field = [fields = st.fields.name()](int n) { return loaded(fields, n); };
    const auto place = [&config, &ch, field](const Expr &key) -> std::pair<Expr, Expr> {
        const Expr last = min(key, ch.block - 1);
        if (!config.paged) return {field(task_first_key) + loaded(ch.first_key.name(), 0) + key, field(task_kv_batch)};
        return {loaded(ch.slots.name() + ".0", last) + (key - last), loaded(ch.slots.name() + ".1", last)};
    };
    const auto stream = [&](const std::string &rows, int length, int ahead, Wanted wanted) {
        const auto along = [rows](const Expr &index, const char *axis) { return elements_along(rows, axis, index); };
        const int lines = (lines_of(length, bytes) + bursts.parts - 1) / bursts.parts, all = lines * bursts.rows;
        const auto element = [=](const Expr &n) {  // n is the number of the burst times `all` and a constant
            const Expr burst = simplify(n / all), of_burst = simplify(n % all);
            const Expr row = burst * bursts.rows / bursts.parts + of_burst / lines,
                       line = burst % bursts.parts * lines + of_burst % lines;
            const auto [slot, page] = place((Variable::make(Int(32), tiles) + ahead) * tile + row);
            return along(page, "page") + along(field(task_kv_head), "head") + along(slot, "slot") +
                   cast<int64_t>(line * (line_bytes / bytes));
        };
        return SpreadPrefetches::Stream{rows, bytes, element, all, Expr(), wanted};
    };
    // Values that are read where they are, of a block at its end: with AVX-512 those of short rows take the place of
    // the tile's keys in L1 (8 queries on 4096 keys, 32 / 8 heads of 128 floats, Zen 5: 1.15 times the time; AVX2
    // 0.95).
    const bool far = config.copies_k();
    const bool far_values = far || (!config.packs_kv() && bursts.parts == 1 && config.lanes == 16);
    // TrimRows has made copies of the step, for different numbers of rows.
    passes->add_exactly<SpreadPrefetches>(
        1 + copies_for_fewer_rows(config), "loops that ask for tiles", ch.over_d.x.name() + ".outer.burst",
        std::vector<std::string>{tiles},
        std::vector<SpreadPrefetches::Stream>{
            stream("k", config.head_dim, far ? tiles_of_block : 1, far ? Wanted::in_l2 : Wanted::in_l1),
            stream("v", config.head_dim_v, config.packs_kv() ? tiles_of_block : 0,
                   far_values ? Wanted::in_l2 : Wanted::in_l1)});
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
        const int lines = config.kv_block * lines_of(length, bytes);
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
        passes->add_exactly<SpreadPrefetches>(1 + copies_for_fewer_rows(config), "loops that ask for blocks",
                                              product + ".outer", std::vector{tile}, std::vector{stream});
    };
    add("v", config.head_dim_v, 0, ch.over_d.x.name(), ch.logits.name() + ".s0." + st.k.name() + ".ko",
        config.head_dim / config.product_unroll, config.kv_block / config.key_tile);
    add("k", config.head_dim, config.kv_block, ch.numbers.x.name(), ch.block_out.name() + ".s1." + st.d.name() + ".db",
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

    if (!config.copies_v()) {
        const auto along = [](const Expr &index, const char *axis) {
            return elements_along("v", axis, index) * int{sizeof(float)};
        };
        const Expr block = along(field(task_kv_batch), "page") + along(field(task_kv_head), "head") +
                           along(field(task_first_key) + first_key, "slot");
        const int all = ch.block * lines_of(config.head_dim_v, int{sizeof(float)}),
                  at_once = (all + bursts - 1) / bursts;
        const Expr step = along(ch.block, "slot") / (bursts * at_once);
        add("v", at_once, [=](const Expr &burst, const Expr &n) {
            return block + cast<int64_t>(burst) * (step * at_once) + n * step;
        });
    }
    passes->add_exactly<SpreadPrefetches>(1 + copies_for_fewer_rows(config), "loops that ask for a bias and values",
                                          ch.over_d.x.name() + ".outer.burst", std::vector<std::string>{tile}, streams,
                                          asks);
}

}  // namespace

int product_bursts(const AttentionConfig &config) {
    const bool asks = config.phase == Phase::prefill && config.has_bias && !config.packs_kv() && !config.any_head_dim();
    const int bursts = asks_for_tiles(config) ? tile_bursts(config).count
                       : asks                 ? std::gcd(config.query_elements() / config.product_unroll, 8)
                                              : 0;
    return bursts > 1 ? bursts : 0;  // of one there is no loop
}

void add_tile_prefetches(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    if (asks_for_blocks(config)) prefetch_blocks(passes, st, config);
    if (product_bursts(config) == 0) return;
    asks_for_tiles(config) ? prefetch_tiles(passes, st, config) : prefetch_with_bias(passes, st, config);
}

void add_row_prefetches(Passes *passes, const AttentionStages &st, const AttentionConfig &config) {
    const auto ask = [&](const std::vector<std::string> &loops, PrefetchRows::Ahead ahead,
                         const std::function<Expr(const std::string &)> &distance) {
        std::vector<PrefetchRows::Ahead> of_both;
        for (const std::string rows : {"k", "v"}) {
            ahead.input = ahead.rows = rows;
            ahead.distance = distance(rows);
            of_both.push_back(ahead);
        }
        passes->add<PrefetchRows>(loops, of_both);
    };
    const auto keys_ahead = [&](int keys) {
        PrefetchRows::Ahead ahead;
        ahead.wanted = Wanted::in_l1;
        if (config.looks_up_ahead()) {
            ahead.table = st.full.slots.name();
            ahead.keys = keys;
        }
        return ahead;
    };
    const Expr none = make_const(Int(64), 0);
    const auto field = [&](int n) { return loaded(st.fields.name(), n); };
    std::vector<std::string> over_heads;
    for (const BlockChain *chain : st.chains) {
        if (chain->ranged) continue;
        const std::string dots = chain->decode.dots.name() + ".s0.", values = chain->value_tile.name() + ".s1.";
        // The last two blocks of rows of a head ask for the same keys of the next one, those of the task's last head
        // for the next keys of the first one. Until then L1 keeps the head's own keys. The last block alone is too
        // late: 8 rows from memory, 32 / 4 heads of 128 floats, Zen 5, take 1.07 times the time.
        PrefetchRows::Ahead ahead = keys_ahead(config.prefetch_keys);
        const Expr block =
            Variable::make(Int(32), st.loop(*chain, chain->block_loop()) + (config.whole_keys > 0 ? ".blocks" : ""));
        const Expr head = loaded(st.decode.heads.name(), block), blocks = field(task_head_blocks);
        const Expr end = (head + 1) * blocks, stays = block + 2 < end, is_last = end >= field(task_num_blocks);
        if (config.task_blocks > 1) ahead.same_keys = stays || !is_last;
        ask({dots + st.k.name() + ".ko", values + chain->numbers.x.name() + ".key"}, ahead,
            [&](const std::string &rows) {
                const Expr keys = ahead.keys > 0 ? none : elements_along(rows, "slot", st.decode.prefetched_keys);
                if (config.task_blocks == 1) return keys;
                const Expr of_first = keys - elements_along(rows, "head", head);
                return select(stays, none, is_last, of_first, elements_along(rows, "head", 1));
            });
        over_heads.push_back(dots + st.rb.name());
        if (config.loops_over_visits()) over_heads.push_back(values + chain->numbers.x.name() + ".whole");
        for (const std::string &loop : {st.d.name() + ".db", st.row.name() + ".ro", st.rb.name()}) {
            over_heads.push_back(values + loop);  // the innermost one is any of them
        }
    }
    // Four rows of 8 heads of 128 floats from memory, Zen 5, 2 threads, time with it of that without: AVX-512 0.72,
    // AVX2 0.53. One row of floats is fast enough for the prefetchers of the cache: 1.1. Of bf16, AVX2, keys in pages:
    // 0.63.
    if (config.whole_keys > 0 && (config.row_block > 1 || config.kv_dtype != ElementType::f32)) {
        const int bytes = stored_type(config.kv_dtype).bytes();
        const Expr in_memory = make_const(Int(64), (16 << 10) / bytes);
        ask(over_heads, keys_ahead(AttentionConfig::whole_keys_ahead),
            [&](const std::string &) { return config.looks_up_ahead() ? none : in_memory; });
    }
}

Expr loaded(const std::string &array, const Expr &element) {
    return Load::make(Int(32), array, element, Buffer<>(), Parameter(), const_true(),
                      Halide::Internal::ModulusRemainder());
}

}  // namespace heed
