// The algorithm on one block of keys: logits, softmax, and the step that adds it all to the state of the rows.
#include "generators/attention/builder.h"
#include "generators/attention/logits.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/carried.h"
#include "generators/lowering/lane_sums.h"
#include "generators/lowering/skip_blocks.h"

namespace heed {

using namespace Halide;

AttentionBuilder::Args AttentionBuilder::of_rows(Args first) const {
    if (!row_lanes) first.emplace_back(st.rb);
    first.emplace_back(st.t);
    return first;
}

AttentionBuilder::Args AttentionBuilder::of_state(Args first) const {
    first = of_rows(std::move(first));
    first.emplace_back(st.sp);
    return first;
}

AttentionBuilder::Args AttentionBuilder::in_step(Args first) const {
    first.insert(first.end(), {st.kb, st.t, st.sp});
    return first;
}

AttentionBuilder::Args AttentionBuilder::in_block(Args first) const {
    if (!row_lanes) first.emplace_back(st.rb);
    return in_step(std::move(first));
}

AttentionBuilder::Vars AttentionBuilder::vars(const Args &args) {
    Vars result;
    for (const Expr &arg : args) {
        result.emplace_back(arg.as<Internal::Variable>()->name);
    }
    return result;
}

void AttentionBuilder::define_copies(BlockChain &chain) {
    if (cfg.packs_in_steps()) return define_packed_block(chain);
    Vars args = vars(in_block({st.d, st.k}));
    const int unit = cfg.pads_rows() ? cfg.padded_unit() : 0;
    auto from = [&](const KvSource &source) {
        return [&](const Expr &d) { return source.element(d, kv_head(), slot(chain, st.k)); };
    };
    if (cfg.copies_k()) chain.k_rows.define(args, head_dim, unit, from(in.k));
    if (cfg.copies_v()) chain.v_rows.define(args, head_dim_v, unit, from(in.v));
}

// Element d of key k of the block, of k or v.
Expr AttentionBuilder::element(const BlockChain &chain, const KvSource &source, const PaddedRows &rows, const Expr &d,
                               const Expr &k, bool is_seen) const {
    return rows.rows.defined() ? rows.rows(in_block({d, k})) : source.element(d, kv_head(), slot(chain, k, is_seen));
}

void AttentionBuilder::define_products(BlockChain &chain) {
    if (cfg.packs_k()) return define_packed_product(chain);
    Args at = in_block({st.row, st.k});
    auto stored = [&](const Expr &d) { return in.k.stored(d, kv_head(), slot(chain, st.k)); };
    auto add = [&](const Expr &so_far, const Expr &q, const Expr &d) {
        return cfg.bf16_dots ? bf16_dot(so_far, q, bf16_pair(stored(2 * d), stored(2 * d + 1)))
                             : so_far + q * element(chain, in.k, chain.k_rows, d, st.k);
    };
    if (row_lanes) {
        chain.over_d = RDom(0, cfg.bf16_dots ? head_dim / 2 : head_dim, "over_d" + chain.suffix);
        Expr d = chain.over_d;
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
    // A schedule may split the blocks of rows of a task by a number that comes at run time: Halide knows no end then.
    Expr rb = cfg.whole_keys > 0 ? inside(st.rb, blocks_per_task()) : Expr(st.rb);
    chain.decode.dot_tile(vars(per_lane)) = add(chain.decode.dot_tile(per_lane), st.q_rows(d, st.row, rb, st.t), d);
    chain.decode.dots(vars(per_lane)) = chain.decode.dot_tile(per_lane);
    std::vector<Expr> of_key;
    for (int u = 0; u < lanes; u++) of_key.push_back(chain.decode.dots(in_block({u, st.row, st.k})));
    chain.product(vars(at)) = lane_sum(of_key);
}

void AttentionBuilder::define_logits(BlockChain &chain) {
    Args at = in_block({st.row, st.k});
    Expr product = chain.product(at);
    const bool scales_products = cfg.bf16_dots && cfg.has_raw_logits() && !cfg.packs_kv();
    if (cfg.has_raw_logits()) {
        // Whoever reads a scaled logit gets the same rounded number: the difference of equal ones is 0 at any size.
        chain.raw_logits(vars(at)) = scales_products ? product * (in.scale * log16_e) : product;
        product = chain.raw_logits(at);
    }
    LogitChanges changes = logit_changes(in);
    if (scales_products || !cfg.bf16_dots) changes.scale = Expr();  // they are scaled, or q is
    if (!cfg.has_softcap || chain.only_adds()) changes.leave_out_cap();
    if (cfg.has_kv_scales()) changes.key_scale = in.k.scale(kv_head(), slot(chain, st.k));
    if (cfg.has_bias && chain.tested) changes.bias = block_bias(chain, st.k);
#define HEED_SET_OF_HEAD(name, ...) changes.name = in.name(head(st.row));
    HEED_HEAD_INPUTS(HEED_SET_OF_HEAD)
#undef HEED_SET_OF_HEAD
    changes.position = token_position(position(st.row), field(task_position_offset));
    if (cfg.has_alibi && !chain.only_adds()) {
        // Exact up to 2^24 tokens; the part of a row is apart from its keys, so that it is computed once per block.
        Expr to_first_key = token_distance(key_position(chain, 0), position(st.row), field(task_position_offset));
        changes.distance = to_first_key + cast<float>(st.k);
    }
    if (cfg.score_mod.logit) {
        changes.user = [&](const Expr &logit) {
            return cfg.score_mod.logit(logit, place(key_position(chain, st.k)), in.score_buffers);
        };
    }
    chain.logits(vars(at)) =
        if_visible(chain, st.k, changed_logit(product, changes, LogitUnits::log16).value, lowest_logit());
}

// Whether the call's logits are scaled products, for the head of the task and except for a bias.
Expr AttentionBuilder::keeps_logits() const {
    const LogitChanges changes = logit_changes(in);
    Expr keeps = Internal::const_true();
    if (cfg.has_softcap) keeps = changes.cap_off() && changes.growth_off() && in.temperature(head(0)) == 1.f;
    return cfg.has_alibi ? keeps && in.alibi_slopes(head(0)) == 0.f : keeps;
}

// Before its first product a sum may be no number (StartSums): the factor is 1.
AttentionBuilder::Moved AttentionBuilder::moved_reference(const Expr &block_max, float slack) const {
    Expr before = carried(st.state, st.row, st.kb), reference = select(block_max > before + slack, block_max, before);
    return {reference, select(before == lowest_logit(), 1.f, exp16_nonpositive(before - reference))};
}

void AttentionBuilder::define_softmax(BlockChain &chain) {
    Args at = in_block({st.row, st.k}), per_row = in_block({st.row});
    if (cfg.packs_kv()) return define_packed_weights(chain);
    chain.keys = RDom(0, chain.block, "keys" + chain.suffix);
    if (counts_seen(chain)) chain.keys.where(chain.keys < seen_keys(chain));
    Args at_key = in_block({st.row, Expr(chain.keys)});
    chain.block_max(vars(per_row)) = lowest_logit();
    chain.block_max(vars(per_row)) = max(chain.block_max(per_row), chain.logits(at_key));
    Expr weight, block_max = chain.block_max(per_row);
    if (cfg.adds_in_place()) {
        const Moved moved = moved_reference(block_max, PrefillBlock::slack);
        chain.prefill.reference(vars(per_row)) = {moved.reference, moved.factor};
        weight = exp16_up_to(PrefillBlock::slack, chain.logits(at) - chain.prefill.reference(per_row)[0]);
    } else {
        weight = exp16_nonpositive(chain.logits(at) - block_max);
    }
    chain.weights(vars(at)) = if_visible(chain, st.k, weight, 0.f);
    if (row_lanes) {
        chain.block_sum(vars(per_row)) += chain.weights(at_key);
        return;
    }
    const int lanes = cfg.dot_lanes;
    chain.decode.lane_keys = RDom(0, chain.block / lanes, "lane_keys" + chain.suffix);
    chain.decode.sum_lanes(vars(in_block({st.u, st.row}))) +=
        chain.weights(in_block({st.row, chain.decode.lane_keys * lanes + st.u}));
}

// One step of the online softmax. Each slot depends on the old values of row_max and row_sum only, and precedes
// row_max: so the slots may be updated one after the other or all at once.
void AttentionBuilder::define_step(BlockChain &chain) {
    using S = AttentionStages;
    const int slots = cfg.state_slots();
    // No step of `full` may exist unless the keys fill a block.
    Expr full_keys = packs_groups ? min(in.split_len, in.max_kv_len) : in.max_kv_len;
    Expr ranged_steps = row_lanes ? Expr(max_masked_steps()) : in.split_len / cfg.masked_block + 2;
    Expr max_steps = chain.ranged ? ranged_steps : full_keys / cfg.kv_block;
    const bool classed = has_classes(chain);
    Expr outputs = row_lanes ? head_dim_v : padded(head_dim_v);
    Region region{{0, slots + outputs}, {0, max_steps}};
    if (!row_lanes) region.emplace_back(0, blocks_per_task());
    chain.steps = RDom(region, "steps" + chain.suffix);
    Expr slot = chain.steps.x, step = chain.steps.y;
    const int in_middle = cfg.takes_parts() ? part_steps : full_steps;
    const int untested = chain.as_is ? as_is_steps : chain.added ? added_steps : classed ? plain_steps : in_middle;
    const int part = chain.ranged ? masked_steps : classed && chain.tested ? mixed_steps : untested;
    chain.steps.where(step < range(part));
    Expr test;
    if (cfg.score_mod.block_visible) test = block_visible(chain, step);
    if (classed) {
        Expr in_class = chain.first_key(step, st.t, st.sp)[1] == (chain.tested ? mixed_block : plain_block);
        test = test.defined() ? in_class && test : in_class;
    }
    if (test.defined()) chain.steps.where(block_test(test));

    if (cfg.task_blocks > 1) chain.steps.where(chain.steps.z < field(task_num_blocks));
    auto here = [&](Args first, const Args &rest) {
        if (!row_lanes) first.emplace_back(chain.steps.z);
        first.insert(first.end(), rest.begin(), rest.end());
        return first;
    };
    auto state = [&](const Expr &x) { return st.state(here({st.row, x}, {st.t, st.sp})); };
    auto block = [&](const Func &f, const Args &first) { return f(here(first, {step, st.t, st.sp})); };
    Expr element = max(slot - slots, 0);  // SumInPlace knows no clamp, and of packed keys a promise leaves none
    if (cfg.packs_kv()) element = inside(element, outputs);
    if (!cfg.adds_in_place()) element = min(element, outputs - 1);
    Expr block_out = block(chain.block_out, {st.row, element});
    if (cfg.adds_in_place()) {
        Tuple reference = chain.prefill.reference(st.row, step, st.t, st.sp);
        auto with_block = [&](const Expr &before, const Expr &sum) { return before * reference[1] + sum; };
        auto new_sum = [&](S::Slot of, const Func &sum) {
            return with_block(state(slot_of(of)), block(sum, {st.row}));
        };
        Expr of_softmax = select(slot == slot_of(S::row_sum), new_sum(S::row_sum, chain.block_sum), reference[0]);
        if (cfg.packs_kv()) {
            Expr exact_sum = new_sum(S::exact_sum, chain.bf16.exact_sum);
            of_softmax = select(slot == slot_of(S::exact_sum), exact_sum, of_softmax);
        }
        st.state(st.row, slot, st.t, st.sp) =
            select(slot >= slots, likely(with_block(state(slot), block_out)), of_softmax);
        return;
    }
    Expr old_max = state(S::row_max), block_max = block(chain.block_max, {st.row}), new_max = max(old_max, block_max);
    const auto with_block = [&](const Expr &sum) {
        return state(slot) * state(S::old_factor) + sum * state(S::new_factor);
    };
    Expr factor = exp16_nonpositive(select(slot == S::old_factor, old_max, block_max) - new_max);
    Expr of_softmax = select(slot <= S::new_factor, factor, new_max);
    if (row_lanes) {
        of_softmax = select(slot == S::row_sum, with_block(block(chain.block_sum, {st.row})), of_softmax);
    } else {
        Expr lane = clamp(slot - cfg.dot_lanes, 0, cfg.dot_lanes - 1);
        Expr sum = with_block(block(chain.decode.sum_lanes, {lane, st.row}));
        of_softmax = select(slot >= cfg.dot_lanes, sum, of_softmax);
    }
    st.state(here({st.row, slot}, {st.t, st.sp})) = select(slot >= slots, likely(with_block(block_out)), of_softmax);
}

// Both ends of a block of rows: at most row_block keys are seen by some rows only, and `full` leaves less than
// kv_block.
int AttentionBuilder::max_masked_steps() const {
    auto steps = [&](int keys) { return (keys + cfg.masked_block - 1) / cfg.masked_block; };
    if (cfg.packs_kv()) return 2 * steps(cfg.kv_block + cfg.row_block) + 1;  // both ends of aligned blocks
    return steps(cfg.row_block) + steps(cfg.kv_block + cfg.row_block);
}

}  // namespace heed
