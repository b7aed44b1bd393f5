#include "attention_stages.h"

#include "score_mod.h"

namespace heed {

using namespace Halide;

namespace {

Expr round_up(const Expr &x, int multiple) { return ((x + (multiple - 1)) / multiple) * multiple; }

Expr ceil_div(const Expr &x, int divisor) { return (x + (divisor - 1)) / divisor; }

class Builder {
public:
    Builder(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &st)
        : cfg(config), in(in), st(st), prefill(config.phase == Phase::prefill) {
        group_size = in.num_heads / in.num_kv_heads;
        head_dim = cfg.any_head_dim() ? in.head_dim : Expr(cfg.head_dim);
        head_dim_v = cfg.any_head_dim() ? in.head_dim_v : Expr(cfg.head_dim_v);
    }

    void build() {
        define_queries();
        define_ranges();
        st.state(st.row, st.x, st.rb, st.c, st.b, st.sp) =
            select(st.x == AttentionStages::row_max, lowest_logit(), 0.f);
        for (BlockChain *chain : {&st.full, &st.masked}) {
            define_visibility(*chain);
            define_products(*chain);
            define_softmax(*chain);
            define_values(*chain);
            define_step(*chain);
        }
        if (prefill) {
            define_prefill_outputs();
        } else {
            define_decode_outputs();
        }
    }

private:
    using Args = std::vector<Expr>;
    using Vars = std::vector<Var>;

    const AttentionConfig &cfg;
    const AttentionInputs &in;
    AttentionStages &st;
    const bool prefill;
    Expr group_size, head_dim, head_dim_v;

    // ---- rows: which query position and head a row is. Rows behind the last one repeat it.
    Expr num_rows() const { return prefill ? in.q_len : in.q_len * group_size; }
    Expr packed_row(const Expr &row) const { return min(st.rb * cfg.row_block + row, num_rows() - 1); }
    // (The clamps say what bounds inference cannot derive from quotients.)
    Expr position(const Expr &row) const {
        return prefill ? packed_row(row) : clamp(packed_row(row) / group_size, 0, in.q_len - 1);
    }
    Expr head(const Expr &row) const {
        return prefill ? Expr(st.c) : clamp(st.c * group_size + packed_row(row) % group_size, 0, in.num_heads - 1);
    }
    Expr kv_head() const { return prefill ? st.c / group_size : Expr(st.c); }

    // In decode all blocks of rows go through the same blocks of keys.
    Expr range_block() const { return prefill ? Expr(st.rb) : Expr(0); }

    Expr padded(const Expr &length) const { return cfg.pads_rows() ? round_up(length, cfg.lanes) : length; }

    void define_queries() {
        auto scaled = [&](const Expr &d) {
            return in.q(d, head(st.row), position(st.row), st.b) * (in.scale * log2_e);
        };
        if (cfg.pads_rows()) {
            st.q_padded.define({st.d, st.row, st.rb, st.c, st.b}, head_dim, scaled);
            st.q_rows(st.d, st.row, st.rb, st.c, st.b) = st.q_padded.rows(st.d, st.row, st.rb, st.c, st.b);
        } else {
            st.q_rows(st.d, st.row, st.rb, st.c, st.b) = scaled(st.d);
        }
        if (prefill) {
            st.q_lanes(st.row, st.d, st.rb, st.c, st.b) =
                st.q_tiles.define(cfg, st.q_rows, st.row, st.d, {st.rb, st.c, st.b});
        }
    }

    // ---- which keys
    void define_ranges() {
        Expr kv_len = in.seq(0, st.b), visible_begin = in.seq(1, st.b), visible_end = in.seq(2, st.b);
        Expr split_begin = prefill ? Expr(0) : st.sp * in.split_len;
        Expr split_end = prefill ? kv_len : min(split_begin + in.split_len, kv_len);
        auto first = [&](const Expr &i) { return max(first_visible(i, visible_begin), split_begin); };
        auto end = [&](const Expr &i) { return min(end_visible(i, visible_end, kv_len), split_end); };
        st.row_range(st.row, st.rb, st.b, st.sp) = {first(position(st.row)), end(position(st.row))};

        Expr first_row = prefill ? st.rb * cfg.row_block : Expr(0);
        Expr last_row = prefill ? min(first_row + cfg.row_block, in.q_len) - 1 : in.q_len - 1;
        Expr seen_begin = min(first(first_row), split_end), seen_end = max(end(last_row), seen_begin);
        Expr full_begin = clamp(first(last_row), seen_begin, seen_end);
        Expr full_steps = max(end(first_row) - full_begin, 0) / cfg.kv_block;
        Expr left_steps = ceil_div(full_begin - seen_begin, cfg.masked_block);
        Expr right_steps = ceil_div(seen_end - (full_begin + full_steps * cfg.kv_block), cfg.masked_block);
        st.block_range(st.rb, st.b, st.sp) = {full_begin, full_steps, left_steps, left_steps + right_steps};
    }

    Expr range(int component) const { return st.block_range(range_block(), st.b, st.sp)[component]; }

    Expr key_position(const BlockChain &chain, const Expr &k, const Expr &kb) const {
        if (!chain.ranged) {
            // No step of `full` exists unless the capacity holds a block: the clamp, once per block, makes any step
            // safe.
            return max(min(range(0) + kb * cfg.kv_block, in.k.capacity - cfg.kv_block), 0) + k;
        }
        Expr left = range(2), behind_full = range(0) + range(1) * cfg.kv_block;
        return (kb - left) * cfg.masked_block + select(kb < left, range(0), behind_full) + k;
    }

    Args in_block(Args first) const {
        first.insert(first.end(), {st.kb, st.rb, st.c, st.b, st.sp});
        return first;
    }
    static Vars vars(const Args &args) {
        Vars result;
        for (const Expr &arg : args) {
            result.emplace_back(arg.as<Internal::Variable>()->name);
        }
        return result;
    }

    bool hides(const BlockChain &chain) const { return chain.ranged || cfg.has_mask || cfg.has_bias; }

    void define_visibility(BlockChain &chain) {
        if (!hides(chain)) {
            return;
        }
        Expr pos = key_position(chain, st.k, st.kb), seen;
        Tuple range = st.row_range(st.row, st.rb, st.b, st.sp);
        auto require = [&](const Expr &condition) { seen = seen.defined() ? seen && condition : condition; };
        if (chain.ranged) {
            require(pos >= range[0] && pos < range[1]);
        }
        if (cfg.has_mask) {
            require(mask_allows(per_logit(in.mask, pos, chain.ranged), in.mask_true_hides));
        }
        if (cfg.has_bias) {
            require(!is_negative_infinity(per_logit(in.bias, pos, chain.ranged)));
        }
        chain.visible(vars(in_block({st.row, st.k}))) = seen;
    }

    Expr per_logit(const Func &tensor, const Expr &pos, bool may_lie_outside) const {
        Expr last = in.k.capacity - 1;
        Expr inside = may_lie_outside ? clamp(pos, 0, last) : unsafe_promise_clamped(pos, 0, last);
        return tensor(inside, position(st.row), head(st.row), st.b);
    }

    Expr if_visible(const BlockChain &chain, const Expr &k, const Expr &value, const Expr &otherwise) const {
        return hides(chain) ? select(chain.visible(in_block({st.row, k})), value, otherwise) : value;
    }

    // Element d of key k of the block, of k or v.
    Expr element(const BlockChain &chain, const KvSource &source, const PaddedRows &rows, const Expr &d,
                 const Expr &k) const {
        if (cfg.pads_rows()) {
            return rows.rows(d, k, st.kb, range_block(), st.c, st.b, st.sp);
        }
        return unpadded(chain, source, d, k);
    }
    Expr unpadded(const BlockChain &chain, const KvSource &source, const Expr &d, const Expr &k) const {
        Expr pos = key_position(chain, k, st.kb);
        return chain.ranged ? source.clamped(d, pos, kv_head(), st.b) : source.trusted(d, pos, kv_head(), st.b);
    }

    void define_products(BlockChain &chain) {
        if (cfg.pads_rows()) {
            Vars args = vars({st.d, st.k, st.kb, st.rb, st.c, st.b, st.sp});
            chain.k_rows.define(args, head_dim, [&](const Expr &d) { return unpadded(chain, in.k, d, st.k); });
            chain.v_rows.define(args, head_dim_v, [&](const Expr &d) { return unpadded(chain, in.v, d, st.k); });
        }
        Args at = in_block({st.row, st.k});
        if (prefill) {
            chain.over_d = RDom(0, padded(head_dim), "over_d" + chain.suffix);
            Expr d = chain.over_d;
            chain.product(vars(at)) +=
                st.q_lanes(st.row, d, st.rb, st.c, st.b) * element(chain, in.k, chain.k_rows, d, st.k);
            return;
        }
        const int lanes = cfg.dot_lanes;
        chain.over_d = RDom(0, padded(head_dim) / lanes, "over_d" + chain.suffix);
        Expr d = chain.over_d * lanes + st.u;
        Args per_lane = in_block({st.u, st.row, st.k});
        chain.dot_tile(vars(per_lane)) +=
            st.q_rows(d, st.row, st.rb, st.c, st.b) * element(chain, in.k, chain.k_rows, d, st.k);
        chain.dots(vars(per_lane)) = chain.dot_tile(per_lane);
        define_lane_sums(chain);
        chain.product(vars(at)) = chain.sums.back()(in_block({st.k % lanes, 0, st.row, st.k / lanes}));
    }

    // Each level interleaves the halves of two vectors and adds: after log2(lanes) levels lane e holds the sum of key
    // e.
    void define_lane_sums(BlockChain &chain) {
        const int lanes = cfg.dot_lanes;
        for (int pairs = lanes / 2; pairs >= 1; pairs /= 2) {
            auto operand = [&](const Expr &lane, const Expr &p) {
                return chain.sums.empty() ? chain.dots(in_block({lane, st.row, st.kq * lanes + p}))
                                          : chain.sums.back()(in_block({lane, p, st.row, st.kq}));
            };
            auto half = [&](int from) {
                Expr lane = st.e / 2 + from;
                return select(st.e % 2 == 0, operand(lane, st.p), operand(lane, st.p + pairs));
            };
            Func level("lane_sums" + std::to_string(pairs) + chain.suffix);
            level(vars(in_block({st.e, st.p, st.row, st.kq}))) = half(0) + half(lanes / 2);
            chain.sums.push_back(level);
        }
    }

    void define_softmax(BlockChain &chain) {
        Args at = in_block({st.row, st.k}), per_row = in_block({st.row});
        Expr logit = chain.product(at);
        if (cfg.has_bias) {
            logit = add_bias(logit, per_logit(in.bias, key_position(chain, st.k, st.kb), chain.ranged));
        }
        chain.logits(vars(at)) = if_visible(chain, st.k, logit, lowest_logit());

        chain.keys = RDom(0, chain.block, "keys" + chain.suffix);
        Args at_key = in_block({st.row, Expr(chain.keys)});
        chain.block_max(vars(per_row)) = lowest_logit();
        chain.block_max(vars(per_row)) = max(chain.block_max(per_row), chain.logits(at_key));
        Expr weight = exp2_nonpositive(chain.logits(at) - chain.block_max(per_row));
        chain.weights(vars(at)) = if_visible(chain, st.k, weight, 0.f);
        if (prefill) {
            chain.block_sum(vars(per_row)) += chain.weights(at_key);
            return;
        }
        const int lanes = cfg.dot_lanes;
        chain.lane_keys = RDom(0, chain.block / lanes, "lane_keys" + chain.suffix);
        chain.over_u = RDom(0, lanes, "over_u" + chain.suffix);
        chain.sum_lanes(vars(in_block({st.u, st.row}))) +=
            chain.weights(in_block({st.row, chain.lane_keys * lanes + st.u}));
        chain.block_sum(vars(per_row)) += chain.sum_lanes(in_block({Expr(chain.over_u), st.row}));
    }

    // A hidden key is left out, not multiplied by 0: its value may be NaN.
    void define_values(BlockChain &chain) {
        Args at = in_block({st.row, st.d});
        Expr key = chain.keys;
        chain.value_tile(vars(at)) = 0.f;
        Expr so_far = chain.value_tile(at);
        Expr weighted = chain.weights(in_block({st.row, key})) * element(chain, in.v, chain.v_rows, st.d, key);
        chain.value_tile(vars(at)) = if_visible(chain, key, so_far + weighted, so_far);
        chain.block_out(vars(at)) = chain.value_tile(at);
    }

    // One step of the online softmax. Each slot depends on the old values of row_max and row_sum only, and precedes
    // row_max: so the slots may be updated one after the other or all at once.
    void define_step(BlockChain &chain) {
        using S = AttentionStages;
        const int slots = cfg.state_slots();
        // No step of `full` may exist unless the capacity holds a block.
        Expr full_keys = prefill ? in.k.capacity : min(in.split_len, in.k.capacity);
        Expr masked_steps = prefill ? Expr(max_masked_steps()) : in.split_len / cfg.masked_block + 2;
        Expr max_steps = chain.ranged ? masked_steps : full_keys / cfg.kv_block;
        Expr outputs = prefill ? head_dim_v : padded(head_dim_v);
        chain.steps = RDom({{0, slots + outputs}, {0, max_steps}}, "steps" + chain.suffix);
        Expr slot = chain.steps.x, step = chain.steps.y;
        chain.steps.where(step < range(chain.ranged ? 3 : 1));

        auto state = [&](const Expr &x) { return st.state(st.row, x, st.rb, st.c, st.b, st.sp); };
        auto block = [&](const Func &f, Args first) {
            first.insert(first.end(), {step, st.rb, st.c, st.b, st.sp});
            return f(first);
        };
        Expr old_max = state(S::row_max), block_max = block(chain.block_max, {st.row}),
             new_max = max(old_max, block_max);
        Expr old_factor = exp2_nonpositive(old_max - new_max), new_factor = exp2_nonpositive(block_max - new_max);
        Expr new_sum = state(S::row_sum) * old_factor + block(chain.block_sum, {st.row}) * new_factor;
        Expr element = clamp(slot - slots, 0, outputs - 1);
        Expr new_out =
            state(slot) * state(S::old_factor) + block(chain.block_out, {st.row, element}) * state(S::new_factor);
        st.state(st.row, slot, st.rb, st.c, st.b, st.sp) =
            select(slot >= slots, likely(new_out), slot == S::old_factor, old_factor, slot == S::new_factor, new_factor,
                   slot == S::row_sum, new_sum, new_max);
    }

    // Both ends of a block of rows: at most row_block keys are seen by some rows only, and `full` leaves less than
    // kv_block.
    int max_masked_steps() const {
        auto steps = [&](int keys) { return (keys + cfg.masked_block - 1) / cfg.masked_block; };
        return steps(cfg.row_block) + steps(cfg.kv_block + cfg.row_block);
    }

    // ---- the results of a row
    static Expr inverse(const Expr &sum) { return select(is_zero(sum), 0.f, 1.f / sum); }

    void define_prefill_outputs() {
        using S = AttentionStages;
        auto state = [&](const Expr &x) { return st.state(st.row, x, st.rb, st.c, st.b, 0); };
        st.inverse_sum(st.row, st.rb, st.c, st.b) = inverse(state(S::row_sum));
        st.lse_rows(st.row, st.rb, st.c, st.b) = log_sum_exp(state(S::row_max), state(S::row_sum));
        st.out_lanes(st.row, st.d, st.rb, st.c, st.b) =
            state(cfg.state_slots() + st.d) * st.inverse_sum(st.row, st.rb, st.c, st.b);
        st.out_rows(st.d, st.row, st.rb, st.c, st.b) =
            st.out_tiles.define(cfg, st.out_lanes, st.d, st.row, {st.rb, st.c, st.b});
        Expr row = st.s % cfg.row_block, rb = st.s / cfg.row_block;
        st.out(st.d, st.h, st.s, st.b) = {st.out_rows(st.d, row, rb, st.h, st.b), st.lse_rows(row, rb, st.h, st.b)};
    }

    // Remainders as differences and clamps that change nothing: so bounds inference sees single values, inside the
    // tensors.
    static Expr below(const Expr &x, const Expr &extent) { return clamp(x, 0, extent - 1); }

    void define_tasks() {
        Expr split = st.task / per_split(), in_split = st.task - split * per_split();
        Expr sequence = in_split / per_sequence(), in_sequence = in_split - sequence * per_sequence();
        Expr c = in_sequence / row_blocks(), rb = in_sequence - c * row_blocks();
        st.num_tasks = per_split() * in.num_splits;
        st.split_state(st.row, st.x, st.task) =
            st.state(st.row, st.x, below(rb, row_blocks()), below(c, in.num_kv_heads), below(sequence, in.batch),
                     below(split, in.num_splits));
    }
    Expr row_blocks() const { return ceil_div(num_rows(), cfg.row_block); }
    Expr per_sequence() const { return row_blocks() * in.num_kv_heads; }
    Expr per_split() const { return per_sequence() * in.batch; }

    // Slot x of the state of query row (s, h, b) after one split.
    Expr state_of(const Expr &x, const Expr &split) const {
        Expr c = st.h / group_size, r = st.s * group_size + (st.h - c * group_size), rb = r / cfg.row_block;
        Expr task = split * per_split() + st.b * per_sequence() + c * row_blocks() + rb;
        return st.split_state(below(r - rb * cfg.row_block, cfg.row_block), x, below(task, st.num_tasks));
    }

    void define_decode_outputs() {
        using S = AttentionStages;
        define_tasks();
        st.over_splits = RDom(0, in.num_splits, "over_splits");
        Expr split = st.over_splits;
        st.split_max(st.s, st.h, st.b) = lowest_logit();
        Expr row_max = st.split_max(st.s, st.h, st.b);
        st.split_max(st.s, st.h, st.b) = max(row_max, state_of(S::row_max, split));
        st.split_factor(st.sp, st.s, st.h, st.b) = exp2_nonpositive(state_of(S::row_max, st.sp) - row_max);
        st.merged(st.x, st.s, st.h, st.b) += state_of(st.x, split) * st.split_factor(split, st.s, st.h, st.b);
        Expr row_sum = st.merged(S::row_sum, st.s, st.h, st.b);
        st.out(st.d, st.h, st.s, st.b) = {st.merged(cfg.state_slots() + st.d, st.s, st.h, st.b) * inverse(row_sum),
                                          log_sum_exp(row_max, row_sum)};
    }
};

}  // namespace

Expr TransposedTiles::define(const AttentionConfig &config, const Func &in, const Var &i, const Var &j,
                             const std::vector<Var> &rest) {
    const int lanes = config.lanes, elements = lanes * lanes;
    Var e("e"), ti("ti"), tj("tj");
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

BlockChain::BlockChain(const std::string &suffix, int block, bool ranged)
    : visible("visible" + suffix), product("product" + suffix), dot_tile("dot_tile" + suffix), dots("dots" + suffix),
      logits("logits" + suffix), weights("weights" + suffix), block_max("block_max" + suffix),
      block_sum("block_sum" + suffix), sum_lanes("sum_lanes" + suffix), value_tile("value_tile" + suffix),
      block_out("block_out" + suffix), k_rows("k_rows" + suffix), v_rows("v_rows" + suffix), suffix(suffix),
      block(block), ranged(ranged) {}

AttentionStages::AttentionStages(const AttentionConfig &config)
    : full("_full", config.kv_block, false), masked("_masked", config.masked_block, true) {}

void build_attention(const AttentionConfig &config, const AttentionInputs &in, AttentionStages &stages) {
    Builder(config, in, stages).build();
}

}  // namespace heed
