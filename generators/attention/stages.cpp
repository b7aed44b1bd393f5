// The named stages, and their first part: query rows, the range of keys that a block of rows sees.
#include "generators/attention/stages.h"

#include "generators/attention/builder.h"
#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;

AttentionBuilder::AttentionBuilder(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages)
    : cfg(config), in(in), st(stages), prefill(config.phase == Phase::prefill) {
    group_size = in.num_heads / in.num_kv_heads;
    head_dim = cfg.any_head_dim() ? in.head_dim : Expr(cfg.head_dim);
    head_dim_v = cfg.any_head_dim() ? in.head_dim_v : Expr(cfg.head_dim_v);
}

void AttentionBuilder::build() {
    st.softcap_on = logit_changes(in).cap_on;
    st.mask_on = in.mask_form != no_mask;
    st.bias_on = in.bias_form != no_bias;
    st.bias_is_16 = in.bias_form == bias_of_dtype;
    st.prefill.mask_dense = in.mask_stride == 1;
    st.prefill.bias_dense = in.bias_stride == 1;
    st.prefill.bias_16_dense = in.bias_16_stride == 1;
    st.fields(st.d, st.t) = in.tasks(st.d, st.t);
    task_table = st.fields;
    define_queries();
    define_ranges();
    st.state(st.row, st.x, st.t, st.sp) = select(st.x == AttentionStages::row_max, lowest_logit(), 0.f);
    for (BlockChain *chain : {&st.full, &st.masked}) {
        define_first_key(*chain);
        define_slots(*chain);
        define_visibility(*chain);
        define_copies(*chain);
        define_products(*chain);
        define_logits(*chain);
        define_softmax(*chain);
        define_dropout(*chain);
        define_values(*chain);
        define_step(*chain);
    }
    if (prefill) {
        define_prefill_outputs();
    } else {
        define_decode_outputs();
    }
}

Expr AttentionBuilder::num_rows() const { return prefill ? field(task_q_len) : field(task_q_len) * group_size; }

Expr AttentionBuilder::packed_row(const Expr &row) const { return min(field(task_first_row) + row, num_rows() - 1); }

Expr AttentionBuilder::position(const Expr &row) const {
    return inside(prefill ? packed_row(row) : packed_row(row) / group_size, in.max_q_len);
}

Expr AttentionBuilder::head(const Expr &row) const {
    Expr first = field(task_head);
    return inside(prefill ? first : first + packed_row(row) % group_size, in.num_heads);
}

Expr AttentionBuilder::kv_head() const { return inside(field(task_kv_head), in.num_kv_heads); }

Expr AttentionBuilder::padded(const Expr &length) const {
    return cfg.pads_rows() ? ceil_div(length, cfg.lanes) * cfg.lanes : length;
}

void AttentionBuilder::define_queries() {
    auto in_place = [&](const Expr &d) {
        Expr token = inside(field(task_first_q) + position(st.row), in.q_capacity);
        Expr stored = in.q(d, head(st.row), token, inside(field(task_q_batch), in.q_batch));
        return cfg.bf16_dots ? stored : to_float(cfg.dtype, stored) * (in.scale * log2_e);
    };
    if (cfg.pads_queries()) st.q_padded.define({st.d, st.row, st.t}, head_dim, true, in_place);
    auto element = [&](const Expr &d) {
        return cfg.pads_queries() ? Expr(st.q_padded.rows(d, st.row, st.t)) : in_place(d);
    };
    st.q_rows(st.d, st.row, st.t) = cfg.bf16_dots ? bf16_pair(element(2 * st.d), element(2 * st.d + 1)) : element(st.d);
    if (prefill) {
        st.prefill.q_lanes(st.row, st.d, st.t) = st.prefill.q_tiles.define(cfg, st.q_rows, st.row, st.d, {st.t});
    }
}

void AttentionBuilder::define_ranges() {
    Expr kv_len = field(task_kv_len);
    Expr split_begin = prefill ? Expr(0) : st.sp * in.split_len;
    Expr split_end = prefill ? kv_len : min(split_begin + in.split_len, kv_len);
    auto first = [&](const Expr &row) {
        return max(first_visible(position(row), field(task_visible_begin)), split_begin);
    };
    auto end = [&](const Expr &row) {
        return min(end_visible(position(row), field(task_visible_end), kv_len), split_end);
    };
    st.row_range(st.row, st.t, st.sp) = {first(st.row), end(st.row)};

    // Visibility moves with the position, which grows with the row.
    const int last_row = cfg.row_block - 1;
    Expr seen_begin = min(first(0), split_end), seen_end = max(end(last_row), seen_begin);
    Expr full_begin = clamp(first(last_row), seen_begin, seen_end);
    Expr full_steps = max(end(0) - full_begin, 0) / cfg.kv_block;
    Expr left_steps = ceil_div(full_begin - seen_begin, cfg.masked_block);
    Expr right_steps = ceil_div(seen_end - (full_begin + full_steps * cfg.kv_block), cfg.masked_block);
    st.block_range(st.t, st.sp) = {full_begin, full_steps, left_steps, left_steps + right_steps, seen_end};
}

// No step of `full` exists unless the keys fill a block: the clamp makes any step safe.
Expr AttentionBuilder::first_key(const BlockChain &chain, const Expr &step) const {
    Expr behind_full = range(0) + range(1) * cfg.kv_block, left = range(2);
    return chain.ranged ? (step - left) * cfg.masked_block + select(step < left, range(0), behind_full)
                        : max(min(range(0) + step * cfg.kv_block, in.max_kv_len - cfg.kv_block), 0);
}

void AttentionBuilder::define_first_key(BlockChain &chain) {
    chain.first_key(vars(in_block({}))) = first_key(chain, st.kb);
    if (prefill && chain.ranged && !cfg.bf16_dots) {
        chain.prefill.seen_end(vars(in_block({}))) = min(range(4) - chain.first_key(in_block({})), chain.block);
    }
}

Expr AttentionBuilder::key_position(const BlockChain &chain, const Expr &k) const {
    return chain.first_key(in_block({})) + k;
}

// Paged storage looks each key up once per block, for all rows and for both k and v.
void AttentionBuilder::define_slots(BlockChain &chain) {
    if (!cfg.paged) {
        return;
    }
    // Behind the end, where no table entry may be read, the last key stands in.
    Expr pos = clamp(key_position(chain, st.k), 0, max(field(task_kv_len), 1) - 1);
    KeySlot paged = in.page_table.slot(pos, inside(field(task_sequence), in.batch));
    Expr in_place = field(task_first_key) + select(in.paged, 0, pos);  // in the buffer, where nothing reads it too
    chain.slots(vars(in_block({st.k}))) = {select(in.paged, paged.slot, inside(in_place, in.num_slots)),
                                           select(in.paged, paged.page, inside(field(task_kv_batch), in.num_kv_pages))};
}

KeySlot AttentionBuilder::slot(const BlockChain &chain, const Expr &k) const {
    if (cfg.paged) {
        Tuple found = chain.slots(in_block({k}));
        return {inside(found[0], in.num_slots), inside(found[1], in.num_kv_pages)};
    }
    Expr first = field(task_first_key) + chain.first_key(in_block({}));
    return {chain.ranged ? clamped_slot(first, k, in.num_slots) : trusted_slot(first, k, in.num_slots),
            inside(field(task_kv_batch), in.num_kv_pages)};
}

Expr TransposedTiles::define(const AttentionConfig &config, const Func &in, const Var &i, const Var &j,
                             const std::vector<Var> &rest) {
    const int lanes = config.lanes, elements = lanes * lanes;
    Var e("e"), ti("tile_i"), tj("tile_j");
    auto with_rest = [&](std::vector<Expr> first) {
        first.insert(first.end(), rest.begin(), rest.end());
        return first;
    };
    std::vector<Var> at{e, ti, tj};
    at.insert(at.end(), rest.begin(), rest.end());
    Func load(name + "0");
    load(at) = in(with_rest({tj * lanes + e % lanes, ti * lanes + e / lanes}));
    steps.push_back(load);
    for (int half = 1; half < lanes; half *= 2) {
        Func shuffle(name + std::to_string(steps.size()));
        shuffle(at) = select(e % 2 == 0, steps.back()(with_rest({e / 2, ti, tj})),
                             steps.back()(with_rest({e / 2 + elements / 2, ti, tj})));
        steps.push_back(shuffle);
    }
    return steps.back()(with_rest({i % lanes + lanes * (j % lanes), i / lanes, j / lanes}));
}

PrefillBlock::PrefillBlock(const std::string &suffix)
    : seen_end("seen_end" + suffix), d_end("d_end" + suffix), mask_rows("mask_rows" + suffix),
      bias_rows("bias_rows" + suffix), mask_tiles("mask_tiles" + suffix), bias_tiles("bias_tiles" + suffix),
      exponents("exponents" + suffix), special_end("special_end" + suffix), number_end("number_end" + suffix) {}

DecodeBlock::DecodeBlock(const std::string &suffix)
    : dot_tile("dot_tile" + suffix), dots("dots" + suffix), sum_lanes("sum_lanes" + suffix) {}

Bf16Block::Bf16Block(const std::string &suffix)
    : weight_pairs("weight_pairs" + suffix), v_pairs("v_pairs" + suffix), v_tiles("v_tiles" + suffix),
      v_lanes("v_lanes" + suffix) {}

BlockChain::BlockChain(const std::string &suffix, int block, bool ranged)
    : first_key("first_key" + suffix), slots("slots" + suffix), biases("biases" + suffix), visible("visible" + suffix),
      product("product" + suffix), raw_logits("raw_logits" + suffix), logits("logits" + suffix),
      weights("weights" + suffix), block_max("block_max" + suffix), block_sum("block_sum" + suffix),
      kept("kept" + suffix), value_weights("value_weights" + suffix), value_tile("value_tile" + suffix),
      block_out("block_out" + suffix), k_rows("k_rows" + suffix), v_rows("v_rows" + suffix), prefill(suffix),
      decode(suffix), bf16(suffix), suffix(suffix), block(block), ranged(ranged) {}

AttentionStages::AttentionStages(const AttentionConfig &config)
    : full("_full", config.kv_block, false), masked("_masked", config.masked_block, true) {}

void build_attention(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages) {
    AttentionBuilder(config, in, stages).build();
    stages.decode.prefetched_keys =
        config.paged ? select(in.page_size > 0, 0, config.prefetch_keys) : Expr(config.prefetch_keys);
}

}  // namespace heed
