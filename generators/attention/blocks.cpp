// The algorithm on one block of keys: visibility, logits, softmax, and the step that adds it all to the state of the
// rows.
#include "generators/attention/builder.h"
#include "generators/attention/logits.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/lane_sums.h"
#include "generators/lowering/skip_blocks.h"

namespace heed {

using namespace Halide;

AttentionBuilder::Args AttentionBuilder::in_block(const AttentionStages &st, Args first) {
    first.insert(first.end(), {st.kb, st.t, st.sp});
    return first;
}

AttentionBuilder::Vars AttentionBuilder::vars(const Args &args) {
    Vars result;
    for (const Expr &arg : args) {
        result.emplace_back(arg.as<Internal::Variable>()->name);
    }
    return result;
}

Expr AttentionBuilder::per_logit(const Func &tensor, const Expr &pos, bool may_lie_outside) const {
    Expr key = may_lie_outside ? clamp(pos, 0, in.max_kv_len - 1) : inside(pos, in.max_kv_len);
    Expr sequence = inside(field(task_sequence), in.batch);
    return tensor(key, position(st.row), head(st.row), sequence);
}

Expr AttentionBuilder::bias(const Expr &pos, bool may_lie_outside) const {
    Expr element = per_logit(in.bias, pos, may_lie_outside);
    if (cfg.dtype != ElementType::f32) {
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
    Expr first_h = field(task_head), last_h = prefill ? first_h : first_h + group_size - 1;
    Expr first_i = position(0), last_i = position(cfg.row_block - 1), offset = field(task_position_offset);
    Expr first_j = first_key(chain, step), last_j = min(first_j + chain.block, range(4)) - 1;
    return cfg.score_mod.block_visible(
        {field(task_sequence), first_h, last_h, first_i, last_i, first_j, last_j, first_i + offset, last_i + offset},
        in.score_buffers);
}

// Prefill, whose lanes are rows, copies vectors of keys and transposes them.
Expr AttentionBuilder::by_rows(Func &rows, TransposedTiles &tiles, const Expr &element) const {
    if (!prefill) return element;
    rows(vars(in_block({st.k, st.row}))) = element;
    return tiles.define(cfg, rows, st.row, st.k, {st.kb, st.t, st.sp});
}

void AttentionBuilder::define_visibility(BlockChain &chain) {
    if (!hides(chain)) {
        return;
    }
    Expr pos = key_position(chain, st.k);
    Args at = in_block({st.row, st.k});
    LogitVisibility visibility;
    if (chain.ranged) {
        Tuple range = st.row_range(st.row, st.t, st.sp);
        visibility.in_range = pos >= range[0] && pos < range[1];
    }
    if (cfg.has_mask) {
        visibility.mask_on = st.mask_on;
        visibility.mask =
            by_rows(chain.prefill.mask_rows, chain.prefill.mask_tiles, per_logit(in.mask, pos, chain.ranged));
        visibility.mask_form = in.mask_form;
    }
    if (cfg.has_bias) {
        Expr element = by_rows(chain.prefill.bias_rows, chain.prefill.bias_tiles, bias(pos, chain.ranged));
        chain.biases(vars(at)) = select(st.bias_on, element, 0.f);
        visibility.bias = chain.biases(at);
    }
    if (cfg.score_mod.visible) visibility.user = cfg.score_mod.visible(place(pos), in.score_buffers);
    chain.visible(vars(at)) = is_visible(visibility);
}

Expr AttentionBuilder::if_visible(const BlockChain &chain, const Expr &k, const Expr &value,
                                  const Expr &otherwise) const {
    return hides(chain) ? select(chain.visible(in_block({st.row, k})), value, otherwise) : value;
}

void AttentionBuilder::define_copies(BlockChain &chain) {
    Vars args = vars(in_block({st.d, st.k}));
    if (cfg.bf16_tiles) {
        chain.k_rows.define(args, head_dim, cfg.pads_queries(),
                            [&](const Expr &d) { return in.k.stored(d, kv_head(), slot(chain, st.k)); });
    }
    auto from = [&](const KvSource &source) {
        return [&](const Expr &d) { return source.element(d, kv_head(), slot(chain, st.k)); };
    };
    if (cfg.copies_k()) chain.k_rows.define(args, head_dim, cfg.pads_rows(), from(in.k));
    if (cfg.copies_v()) chain.v_rows.define(args, head_dim_v, cfg.pads_rows(), from(in.v));
}

// Element d of key k of the block, of k or v.
Expr AttentionBuilder::element(const BlockChain &chain, const KvSource &source, const PaddedRows &rows, const Expr &d,
                               const Expr &k) const {
    return rows.rows.defined() ? rows.rows(in_block({d, k})) : source.element(d, kv_head(), slot(chain, k));
}

void AttentionBuilder::define_products(BlockChain &chain) {
    Args at = in_block({st.row, st.k});
    auto stored = [&](const Expr &d) {
        return cfg.bf16_tiles ? Expr(chain.k_rows.rows(in_block({d, st.k})))
                              : in.k.stored(d, kv_head(), slot(chain, st.k));
    };
    auto add = [&](const Expr &so_far, const Expr &q, const Expr &d) {
        return cfg.bf16_dots ? bf16_dot(so_far, q, bf16_pair(stored(2 * d), stored(2 * d + 1)))
                             : so_far + q * element(chain, in.k, chain.k_rows, d, st.k);
    };
    if (prefill) {
        const int pairs = cfg.query_elements();
        Expr steps = cfg.bf16_tiles ? Expr(cfg.padded(pairs)) : cfg.bf16_dots ? Expr(pairs) : head_dim;
        chain.over_d = RDom(0, steps, "over_d" + chain.suffix);
        Expr d = chain.over_d;
        if (chain.prefill.seen_end.defined()) {
            Expr seen = st.kq * cfg.key_tile < chain.prefill.seen_end(in_block({}));
            chain.prefill.d_end(vars(in_block({st.kq}))) = select(seen, head_dim, 0);
            chain.over_d.where(d < chain.prefill.d_end(in_block({st.k / cfg.key_tile})));
        }
        chain.product(vars(at)) = 0.f;
        chain.product(vars(at)) = add(chain.product(at), st.prefill.q_lanes(st.row, d, st.t), d);
        return;
    }
    const int lanes = cfg.dot_lanes;
    Expr steps = cfg.bf16_dots ? Expr(cfg.query_elements()) : padded(head_dim);
    chain.over_d = RDom(0, steps / lanes, "over_d" + chain.suffix);
    Expr d = chain.over_d * lanes + st.u;
    Args per_lane = in_block({st.u, st.row, st.k});
    chain.decode.dot_tile(vars(per_lane)) = 0.f;
    chain.decode.dot_tile(vars(per_lane)) = add(chain.decode.dot_tile(per_lane), st.q_rows(d, st.row, st.t), d);
    chain.decode.dots(vars(per_lane)) = chain.decode.dot_tile(per_lane);
    std::vector<Expr> of_key;
    for (int u = 0; u < lanes; u++) of_key.push_back(chain.decode.dots(in_block({u, st.row, st.k})));
    chain.product(vars(at)) = lane_sum(of_key);
}

void AttentionBuilder::define_logits(BlockChain &chain) {
    Args at = in_block({st.row, st.k});
    Expr product = chain.product(at);
    if (cfg.has_raw_logits()) {
        chain.raw_logits(vars(at)) = product;
        product = chain.raw_logits(at);
    }
    LogitChanges changes = logit_changes(in);
    if (!cfg.bf16_dots) changes.scale = Expr();  // q is scaled
    if (!cfg.has_softcap) changes.cap = Expr();
    if (cfg.has_kv_scales()) changes.key_scale = in.k.scale(kv_head(), slot(chain, st.k));
    if (cfg.has_bias) changes.bias = chain.biases(at);
    if (cfg.has_alibi) {
        // Exact up to 2^24 tokens; the part of a row is apart from its keys, so that it is computed once per block.
        Expr to_first_key = token_distance(key_position(chain, 0), position(st.row), field(task_position_offset));
        changes.slope = in.alibi_slopes(head(st.row));
        changes.distance = to_first_key + cast<float>(st.k);
    }
    if (cfg.score_mod.logit) {
        changes.user = [&](const Expr &logit) {
            return cfg.score_mod.logit(logit, place(key_position(chain, st.k)), in.score_buffers);
        };
    }
    chain.logits(vars(at)) =
        if_visible(chain, st.k, changed_logit(product, changes, LogitUnits::log2).value, lowest_logit());
}

void AttentionBuilder::define_softmax(BlockChain &chain) {
    Args at = in_block({st.row, st.k}), per_row = in_block({st.row});
    chain.keys = RDom(0, chain.block, "keys" + chain.suffix);
    Args at_key = in_block({st.row, Expr(chain.keys)});
    chain.block_max(vars(per_row)) = lowest_logit();
    chain.block_max(vars(per_row)) = max(chain.block_max(per_row), chain.logits(at_key));
    Expr weight = exp2_nonpositive(chain.logits(at) - chain.block_max(per_row));
    chain.weights(vars(at)) = if_visible(chain, st.k, weight, 0.f);
    if (cfg.rounds_weights()) {
        define_weight_pairs(chain);
        return;
    }
    if (prefill) {
        chain.block_sum(vars(per_row)) += chain.weights(at_key);
        return;
    }
    const int lanes = cfg.dot_lanes;
    chain.decode.lane_keys = RDom(0, chain.block / lanes, "lane_keys" + chain.suffix);
    chain.decode.over_u = RDom(0, lanes, "over_u" + chain.suffix);
    chain.decode.sum_lanes(vars(in_block({st.u, st.row}))) +=
        chain.weights(in_block({st.row, chain.decode.lane_keys * lanes + st.u}));
    chain.block_sum(vars(per_row)) += chain.decode.sum_lanes(in_block({Expr(chain.decode.over_u), st.row}));
}

void AttentionBuilder::define_weight_pairs(BlockChain &chain) {
    chain.bf16.pairs = RDom(0, chain.block / 2, "pairs" + chain.suffix);
    Expr first = chain.weights(in_block({st.row, 2 * st.k})), second = chain.weights(in_block({st.row, 2 * st.k + 1}));
    chain.bf16.weight_pairs(vars(in_block({st.row, st.k}))) = {bf16_pair(to_bf16(first), to_bf16(second)),
                                                               first + second};
    chain.block_sum(vars(in_block({st.row}))) += chain.bf16.weight_pairs(in_block({st.row, Expr(chain.bf16.pairs)}))[1];
}

// One step of the online softmax. Each slot depends on the old values of row_max and row_sum only, and precedes
// row_max: so the slots may be updated one after the other or all at once.
void AttentionBuilder::define_step(BlockChain &chain) {
    using S = AttentionStages;
    const int slots = cfg.state_slots();
    // No step of `full` may exist unless the keys fill a block.
    Expr full_keys = prefill ? in.max_kv_len : min(in.split_len, in.max_kv_len);
    Expr masked_steps = prefill ? Expr(max_masked_steps()) : in.split_len / cfg.masked_block + 2;
    Expr max_steps = chain.ranged ? masked_steps : full_keys / cfg.kv_block;
    Expr outputs = prefill ? head_dim_v : padded(head_dim_v);
    chain.steps = RDom({{0, slots + outputs}, {0, max_steps}}, "steps" + chain.suffix);
    Expr slot = chain.steps.x, step = chain.steps.y;
    chain.steps.where(step < range(chain.ranged ? 3 : 1));
    if (cfg.score_mod.block_visible) chain.steps.where(block_test(block_visible(chain, step)));

    auto state = [&](const Expr &x) { return st.state(st.row, x, st.t, st.sp); };
    auto block = [&](const Func &f, Args first) {
        first.insert(first.end(), {step, st.t, st.sp});
        return f(first);
    };
    Expr old_max = state(S::row_max), block_max = block(chain.block_max, {st.row}), new_max = max(old_max, block_max);
    Expr old_factor = exp2_nonpositive(old_max - new_max), new_factor = exp2_nonpositive(block_max - new_max);
    Expr new_sum = state(S::row_sum) * old_factor + block(chain.block_sum, {st.row}) * new_factor;
    Expr element = clamp(slot - slots, 0, outputs - 1);
    Expr new_out =
        state(slot) * state(S::old_factor) + block(chain.block_out, {st.row, element}) * state(S::new_factor);
    st.state(st.row, slot, st.t, st.sp) =
        select(slot >= slots, likely(new_out), slot == S::old_factor, old_factor, slot == S::new_factor, new_factor,
               slot == S::row_sum, new_sum, new_max);
}

// Both ends of a block of rows: at most row_block keys are seen by some rows only, and `full` leaves less than
// kv_block.
int AttentionBuilder::max_masked_steps() const {
    auto steps = [&](int keys) { return (keys + cfg.masked_block - 1) / cfg.masked_block; };
    return steps(cfg.row_block) + steps(cfg.kv_block + cfg.row_block);
}

}  // namespace heed
