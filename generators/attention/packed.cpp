// Packed keys and values: v, and k, copied once into blocks that products of bf16 read, and the steps over them.
#include "generators/attention/builder.h"
#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/common/strict.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/bf16_product.h"
#include "generators/lowering/words.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int edge = tile_edge;

// Bits 15 and 31 are set where all bits of an exponent are.
Expr full_exponents(const Expr &word) { return (word & Expr(0x7f807f80u)) + Expr(0x00800080u); }

}  // namespace

// Once per head, in blocks of the table.
void AttentionBuilder::define_packed() {
    PackedBlocks &packed = st.packed;
    const Var &block = packed.block, &head = packed.head;
    packed.num_blocks = in.num_key_blocks;
    packed.num_heads = in.num_kv_heads;
    auto block_field = [&](int column) { return in.key_blocks(column, block); };
    // After the last key, where no table entry may be read, this is the last one.
    auto position = [&](const Expr &k) {
        return min(block_field(block_first) + k, max(block_field(block_kv_len), 1) - 1);
    };
    auto stored_at = [&](Func &slots, const Expr &k, const KeySlot &end) -> KeySlot {
        Expr first_key = block_field(block_first_key), kv_batch = block_field(block_kv_batch);
        if (!cfg.paged) return {inside(first_key + position(k), end.slot), inside(kv_batch, end.page)};
        if (!slots.defined()) {
            slots(st.k, block) = looked_up(position(st.k), block_field(block_sequence), first_key, kv_batch, end);
        }
        return {inside(slots(k, block)[0], end.slot), inside(slots(k, block)[1], end.page)};
    };
    const KeySlot end_of_k{in.num_slots, in.num_kv_pages}, end_of_v{in.num_v_slots, in.num_v_pages};
    define_packed_blocks(
        packed, {block, head},
        [&](const Expr &d, const Expr &k) { return in.k.stored(d, head, stored_at(packed.k_slots, k, end_of_k)); },
        [&](const Expr &d, const Expr &k) { return in.v.stored(d, head, stored_at(packed.v_slots, k, end_of_v)); });
}

// The block of a step.
void AttentionBuilder::define_packed_block(BlockChain &chain) {
    const auto of = [&](const KvSource &source) {
        return [&](const Expr &d, const Expr &k) { return source.stored(d, kv_head(), slot(chain, k)); };
    };
    define_packed_blocks(chain.packed, {st.kb, st.t, st.sp}, of(in.k), of(in.v));
}

// key, value: what is stored of element d of key k of the block.
void AttentionBuilder::define_packed_blocks(PackedBlocks &packed, const Vars &of_block, const Stored &key,
                                            const Stored &value) {
    const int chunk = cfg.packed_chunk();
    packed.chunks = ceil_div(head_dim, chunk);
    packed.values = cfg.any_head_dim() ? ceil_div(head_dim_v, packed_unit) * packed_unit : head_dim_v;
    const auto at = [&](Args first) {
        first.insert(first.end(), of_block.begin(), of_block.end());
        return first;
    };
    Args element = at({st.e, st.k, st.c});
    if (cfg.packs_k() && cfg.has_whole_chunks()) {
        packed.k(vars(element)) = key(chunk * st.c + st.e, st.k);
    } else if (cfg.packs_k()) {
        packed.over_d = RDom(0, head_dim, packed.k.name() + "_d");
        Expr d = packed.over_d;
        packed.k(vars(element)) = cast<uint16_t>(0);
        packed.k(at({d % chunk, st.k, d / chunk})) = key(d, st.k);
    }
    if (cfg.any_head_dim()) {
        packed.v_rows.define(vars(at({st.d, st.k})), head_dim_v, cfg.padded_unit(),
                             [&](const Expr &d) { return value(d, st.k); });
    }
    const auto element_of_v = [&](const Expr &d, const Expr &k) {
        return cfg.any_head_dim() ? Expr(packed.v_rows.rows(at({d, k}))) : value(d, k);
    };
    const auto transposed = [&](int i, const Expr &pair, const Expr &d) {
        Func pairs(packed.v.name() + "_pairs_" + std::to_string(i));
        pairs(vars(at({st.d, st.k}))) = pair;
        return packed.v_tiles[i].define(cfg.lanes, pairs, edge * st.c + st.p, d, of_block);
    };
    Func &v = packed.v;
    // Rows are read as words of two elements, and of two keys come the pairs of even and those of odd elements.
    const auto word = [&](const Expr &d, const Expr &k) {
        return word_of_neighbours({element_of_v(2 * d, k), element_of_v(2 * d + 1, k)});
    };
    const auto pairs = [&](const Expr &d, const Expr &k) -> std::pair<Expr, Expr> {
        const Expr first = word(d, 2 * k), second = word(d, 2 * k + 1), low = Expr(0xffffu), high = Expr(0xffff0000u);
        return {(first & low) | (second << 16), (first >> 16) | (second & high)};
    };
    if (!cfg.bf16_tiles) {
        const auto [even, odd] = pairs(st.e, st.p);
        v(vars(at({st.e, st.c, st.p}))) = select(st.c == 0, even, odd);
    } else if (cfg.packs_words()) {
        const auto [even, odd] = pairs(st.d, st.k);
        const Expr d = st.d / 2;
        v(vars(at({st.p, st.d, st.c}))) = select(st.d % 2 == 0, transposed(0, even, d), transposed(1, odd, d));
    } else {
        const Expr pair = bf16_pair(element_of_v(st.d, 2 * st.k), element_of_v(st.d, 2 * st.k + 1));
        v(vars(at({st.p, st.d, st.c}))) = transposed(0, pair, st.d);
    }

    const int lanes = cfg.packed_lanes(), pairs_of_block = cfg.kv_block / 2;
    Region values{{0, packed.values}, {0, pairs_of_block / edge}};
    if (!cfg.bf16_tiles) values = {{0, packed.values / (2 * lanes)}, {0, 2}, {0, pairs_of_block}};
    packed.over_v = RDom(values, packed.v.name() + "_values");
    const RVar x = packed.over_v.x;
    Args of_lanes{cfg.bf16_tiles ? Expr(st.u) : lanes * x + st.u, cfg.bf16_tiles ? Expr(x) : Expr(packed.over_v.y)};
    of_lanes.emplace_back(cfg.bf16_tiles ? packed.over_v.y : packed.over_v.z);
    Args lane = at({st.u});
    packed.exponents(vars(lane)) = cast<uint32_t>(0);
    packed.exponents(vars(lane)) = packed.exponents(lane) | full_exponents(packed.v(at(of_lanes)));
    Expr some = packed.exponents(at({0}));
    for (int u = 1; u < lanes; u++) some = some | packed.exponents(at({u}));
    packed.nonfinite(of_block) = cast<uint8_t>((some & Expr(0x80008000u)) != 0);
}

const PackedBlocks &AttentionBuilder::packed_of(const BlockChain &chain) const {
    return cfg.packs_first() ? st.packed : chain.packed;
}

// Packed k, v or nonfinite in the block of a step.
Expr AttentionBuilder::in_packed_block(const BlockChain &chain, Func PackedBlocks::*of, Args first) const {
    if (cfg.packs_in_steps()) return (packed_of(chain).*of)(in_step(std::move(first)));
    first.insert(first.end(), {packed_block(chain), kv_head()});
    return (packed_of(chain).*of)(first);
}

// Where the first key of a step is in its packed block.
Expr AttentionBuilder::packed_key(const BlockChain &chain) const {
    return cfg.packs_first() && chain.ranged ? first_key(chain) % cfg.kv_block : Expr(0);
}

Expr AttentionBuilder::packed_block(const BlockChain &chain) const {
    return inside(field(task_first_block) + first_key(chain) / cfg.kv_block, in.num_key_blocks);
}

// Whole blocks of keys that no page table places, where rows are whole tiles' rows.
bool AttentionBuilder::reads_keys_in_place(const BlockChain &chain) const {
    return cfg.packs_in_steps() && cfg.has_whole_chunks() && !chain.ranged;
}

void AttentionBuilder::define_packed_product(BlockChain &chain) {
    Args at = in_block({st.row, st.k});
    const int pairs = cfg.packed_chunk() / 2;
    chain.over_d = RDom({{0, pairs}, {0, packed_of(chain).chunks}}, "over_d" + chain.suffix);
    Expr p = chain.over_d.x, c = chain.over_d.y, key = inside(packed_key(chain) + st.k, cfg.kv_block);
    auto half = [&](int i) { return in_packed_block(chain, &PackedBlocks::k, {2 * p + i, key, c}); };
    Expr pair = bf16_pair(half(0), half(1));
    if (reads_keys_in_place(chain)) {
        const KeySlot in_place = slot_in_place(chain, st.k, true);
        auto stored = [&](int i) { return in.k.stored(2 * (pairs * c + p) + i, kv_head(), in_place); };
        pair = select(st.in_place, bf16_pair(stored(0), stored(1)), pair);
    }
    chain.product(vars(at)) = 0.f;
    chain.product(vars(at)) = bf16_dot(chain.product(at), st.prefill.q_lanes(st.row, pairs * c + p, st.t), pair);
}

// Outputs are divided by the sum of the weights that the products multiply, rounded: so peaked logits lose nothing.
void AttentionBuilder::define_packed_weights(BlockChain &chain) {
    Args at = in_block({st.row, st.k}), per_row = in_block({st.row}), part = in_block({st.row, st.x});
    Bf16Block &b = chain.bf16;
    auto of_parts = [&](const Func &f, auto combine) {
        Expr all = f(in_block({st.row, 0}));
        for (int x = 1; x < b.parts; x++) all = combine(all, f(in_block({st.row, x})));
        return all;
    };
    b.part_keys = RDom(0, chain.block / b.parts, "keys" + chain.suffix);
    b.max_parts(vars(part)) = lowest_logit();
    b.max_parts(vars(part)) = max(b.max_parts(part), chain.logits(in_block({st.row, b.parts * b.part_keys + st.x})));
    Expr block_max = of_parts(b.max_parts, [](const Expr &x, const Expr &y) { return max(x, y); });
    const auto [reference, factor] = moved_reference(block_max, b.reference_slack);
    Expr in_units = select(reference == lowest_logit(), lowest_logit(), -reference * fixed_unit);
    chain.prefill.reference(vars(per_row)) = {reference, factor, fixed_reference(reference), in_units};

    Expr from = chain.prefill.reference(per_row)[0], fixed_from = chain.prefill.reference(per_row)[2];
    // Without features a logit is a product times a scale, which the fixed point's unit joins: one FMA (see fits_unit).
    // A bias and the reference are added before: where both the product and the bias overflow in these units, as the
    // logit would not, the FMA's exact product still gives the sign of the larger one's infinity.
    const bool by_product = !modifies_logits(chain) || chain.added;
    const auto logit_after = [&](const Expr &added_to, const Expr &unit, const Expr &k) {
        Args of_key = in_block({st.row, k});
        if (!by_product) return chain.logits(of_key) * unit + added_to;
        Expr sum = added_to;
        if (chain.added && cfg.has_bias)
            sum = strict(Internal::Call::strict_add,
                         strict(Internal::Call::strict_mul, block_bias(chain, k), log16_e * unit), added_to);
        Expr product = cfg.has_raw_logits() ? chain.raw_logits(of_key) : chain.product(of_key);
        return product * (in.scale * (log16_e * unit)) + sum;
    };
    chain.weights(vars(at)) = if_visible(chain, st.k, bf16_weight(logit_after(fixed_from, fixed_unit, st.k)), Expr(0u));
    auto weight = [&](int i) { return chain.weights(in_block({st.row, 2 * st.k + i})) >> 16; };
    b.weight_pairs(vars(at)) = bf16_pair(weight(0), weight(1));
    const auto exact_weight = [&](const Expr &k) {
        return exp16_any(
            strict_float(chain.logits(in_block({st.row, k})) - from));  // not as an FMA: see huge_reference
    };
    b.sized_rows = RDom(0, cfg.row_block / edge, "sized_rows" + chain.suffix);
    // As an integer the size of a row's reference, 0 where it has seen no key.
    const auto reference_size = [&](const Expr &row) {
        Expr word = bits(chain.prefill.reference(in_block({row}))[0]);
        return select(word == bits(lowest_logit()), 0, word & 0x7fffffff);
    };
    Args by_lane = in_block({st.u});
    b.reference_sizes(vars(by_lane)) = 0;
    b.reference_sizes(vars(by_lane)) = max(b.reference_sizes(by_lane), reference_size(b.sized_rows * edge + st.u));
    Expr largest = b.reference_sizes(in_block({0}));
    for (int u = 1; u < edge; u++) largest = max(largest, b.reference_sizes(in_block({u})));
    const auto is_inexact = [&](const Expr &size) {
        Expr is_huge = size >= b.huge_reference;
        return by_product ? is_huge || !b.fits_unit(in.scale) : is_huge;
    };
    b.again_end(vars(in_block({}))) = select(is_inexact(largest), chain.block / 2, 0);
    b.again = RDom(0, chain.block / 2, "again" + chain.suffix);
    b.again.where(b.again < b.again_end(in_block({})));
    const auto rounded = [&](int i) {
        Expr k = 2 * b.again + i;
        return if_visible(chain, k, to_bf16(exact_weight(k)), cast<uint16_t>(0));
    };
    // Only in these rows: what one row sees changes no bit of another row.
    Args pair_again = in_block({st.row, Expr(b.again)});
    b.weight_pairs(pair_again) =
        select(is_inexact(reference_size(st.row)), bf16_pair(rounded(0), rounded(1)), b.weight_pairs(pair_again));

    b.pairs = RDom(0, chain.block / 2 / b.parts, "pairs" + chain.suffix);
    Expr pair = b.weight_pairs(in_block({st.row, b.parts * b.pairs + st.x})), ones = Expr(0x3f803f80u);
    b.sum_parts(vars(part)) = 0.f;
    b.sum_parts(vars(part)) = bf16_dot(b.sum_parts(part), pair, ones);
    chain.block_sum(vars(per_row)) = of_parts(b.sum_parts, [](const Expr &x, const Expr &y) { return x + y; });

    b.exact = RDom(0, select(in.wants_lse != 0, chain.block, 0), "exact" + chain.suffix);
    if (counts_seen(chain)) b.exact.where(b.exact < seen_keys(chain));
    // wants_lse is 1 here, but LLVM knows no number: else it takes the product from the weights, which then are no FMA.
    Expr unit = fixed_unit * cast<float>(in.wants_lse);
    Expr key = b.exact, exact = power_of_units(logit_after(chain.prefill.reference(per_row)[3], unit, key));
    b.exact_sum(vars(per_row)) = 0.f;
    // In the order of the keys, wherever it is woven.
    b.exact_sum(vars(per_row)) =
        strict(Internal::Call::strict_add, b.exact_sum(per_row), if_visible(chain, key, exact, 0.f));
    b.exact_again = RDom(0, select(in.wants_lse != 0, chain.block, 0), "exact_again" + chain.suffix);
    b.exact_again.where(b.exact_again < 2 * b.again_end(in_block({})));
    if (counts_seen(chain)) b.exact_again.where(b.exact_again < seen_keys(chain));
    Expr so_far = b.exact_sum(per_row), term = if_visible(chain, b.exact_again, exact_weight(b.exact_again), 0.f);
    b.exact_sum(vars(per_row)) =
        select(is_inexact(reference_size(st.row)), select(b.exact_again == 0, 0.f, so_far) + term, so_far);
}

}  // namespace heed
