// What rows see of the keys of a block: by masks, biases and a score function's test, each read for every logit.
#include "generators/attention/builder.h"
#include "generators/attention/logits.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/words.h"

namespace heed {

using namespace Halide;

Expr AttentionBuilder::per_logit(const Func &tensor, const Expr &pos, bool may_lie_outside) const {
    return of_row(tensor, st.row, may_lie_outside ? clamp(pos, 0, in.max_kv_len - 1) : inside(pos, in.max_kv_len));
}

Expr AttentionBuilder::of_row(const Func &tensor, const Expr &row, const Expr &key) const {
    return tensor(key, position(row), head(row), inside(field(task_sequence), in.batch));
}

Expr AttentionBuilder::bias(const Expr &pos, bool may_lie_outside) const {
    Expr element = per_logit(in.bias, pos, may_lie_outside);
    if (cfg.has_bias_16()) {
        Expr element_16 = to_float(cfg.dtype, per_logit(in.bias_16, pos, may_lie_outside));
        element = select(st.bias_is_16, element_16, element);
    }
    return element;
}

ScorePlace AttentionBuilder::place(const Expr &pos) const {
    Expr i = position(st.row);
    return {field(task_sequence), head(st.row), i, pos, i + field(task_position_offset)};
}

// The user's test of the block of a step, on what some row of the task may see.
Expr AttentionBuilder::block_visible(const BlockChain &chain, const Expr &step) const {
    Expr first_h = field(task_head), last_h = packs_groups ? first_h + group_size - 1 : first_h;
    Expr first_i = position(0), last_i = position(cfg.row_block - 1), offset = field(task_position_offset);
    Expr first_j = first_key(chain, step), last_j = min(first_j + chain.block, range(seen_end)) - 1;
    return cfg.score_mod.block_visible(
        {field(task_sequence), first_h, last_h, first_i, last_i, first_j, last_j, first_i + offset, last_i + offset},
        in.score_buffers);
}

// Where rows are lanes, vectors of keys are copied and transposed.
Expr AttentionBuilder::by_rows(Func &rows, TransposedTiles &tiles, const Expr &element) const {
    if (!row_lanes) return element;
    rows(vars(in_block({st.k, st.row}))) = element;
    return tiles.define(cfg.lanes, rows, st.row, st.k, {st.kb, st.t, st.sp});
}

void AttentionBuilder::define_visibility(BlockChain &chain) {
    if (!hides(chain)) {
        return;
    }
    Expr pos = key_position(chain, st.k);
    Args at = in_block({st.row, st.k});
    LogitVisibility visibility;
    if (chain.ranged) {
        Tuple range = st.row_range(of_state({st.row}));
        visibility.in_range = pos >= range[0] && pos < range[1];
    }
    if (cfg.has_mask && chain.tested) {
        visibility.mask_on = st.mask_on;
        visibility.mask = cfg.reads_mask_words() ? mask_of_words(chain)
                                                 : by_rows(chain.prefill.mask_rows, chain.prefill.mask_tiles,
                                                           per_logit(in.mask, pos, chain.ranged));
        visibility.mask_form = in.mask_form;
    }
    if (cfg.has_bias && chain.tested) {
        Expr element = by_rows(chain.prefill.bias_rows, chain.prefill.bias_tiles, bias(pos, chain.ranged));
        if (cfg.reads_bias_pairs() && !chain.ranged)
            element = select(st.prefill.reads_dense_16, bias_of_pairs(chain), element);
        chain.biases(vars(at)) = select(st.bias_on, element, 0.f);
        visibility.bias = block_bias(chain, st.k);
    }
    if (cfg.score_mod.visible) visibility.user = cfg.score_mod.visible(place(pos), in.score_buffers);
    chain.visible(vars(at)) = is_visible(visibility);
}

// Rows are copied first: by lines of neighbouring keys, of which one that would end after the tensor begins that much
// earlier, or key by key where there is no whole line. (A block begins at or after key 0.)
Expr AttentionBuilder::mask_of_words(BlockChain &chain) const {
    PrefillBlock &block = chain.prefill;
    const int line = cfg.keys_of_mask_square();
    const Expr first = first_key(chain), reads_lines = st.prefill.mask_dense && in.max_kv_len >= line;
    Func &bytes = block.mask_rows, words("mask_words" + chain.suffix);
    bytes(vars(in_block({st.k, st.row}))) = undef<uint8_t>();
    block.mask_lines = RDom(0, line, 0, chain.block / line, "mask_lines" + chain.suffix);
    block.mask_lines.where(reads_lines);
    const Expr key = block.mask_lines.x, begin = clamp(first + line * block.mask_lines.y, 0, in.max_kv_len - line);
    const Expr place = unsafe_promise_clamped(begin - first, -line, chain.block - line) + key;
    bytes(in_block({place, st.row})) = of_row(in.mask, st.row, inside(begin + key, in.max_kv_len));
    block.mask_keys = RDom(0, chain.block, "mask_keys" + chain.suffix);
    block.mask_keys.where(!reads_lines);
    bytes(in_block({block.mask_keys, st.row})) = per_logit(in.mask, first + block.mask_keys, chain.ranged);

    const auto byte = [&](int i) { return bytes(in_block({4 * st.k + i, st.row})); };
    words(vars(in_block({st.k, st.row}))) = word_of_neighbours({byte(0), byte(1), byte(2), byte(3)});
    const Expr word = block.mask_tiles.define(cfg.lanes, words, st.row, st.k / 4, {st.kb, st.t, st.sp});
    return word & (Expr(0xffu) << cast<uint32_t>(8 * (st.k % 4)));
}

Expr AttentionBuilder::bias_of_pairs(BlockChain &chain) const {
    const auto stored = [&](int i) { return per_logit(in.bias_16, key_position(chain, 2 * st.k + i), false); };
    Func words("bias_words" + chain.suffix);
    words(vars(in_block({st.k, st.row}))) = word_of_neighbours({stored(0), stored(1)});
    Expr pair = chain.prefill.bias_pairs.define(cfg.lanes, words, st.row, st.k / 2, {st.kb, st.t, st.sp});
    return bf16_of_key(pair, st.k);
}

// With packed keys nothing makes the block's biases where there are none.
Expr AttentionBuilder::block_bias(const BlockChain &chain, const Expr &k) const {
    Expr element = chain.biases(in_block({st.row, k}));
    return cfg.packs_kv() ? select(st.bias_on, element, 0.f) : element;
}

Expr AttentionBuilder::if_visible(const BlockChain &chain, const Expr &k, const Expr &value,
                                  const Expr &otherwise) const {
    return hides(chain) ? select(chain.visible(in_block({st.row, k})), value, otherwise) : value;
}

}  // namespace heed
