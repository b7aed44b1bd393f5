// The algorithm on one block of keys, its last part: weighted values.
#include "generators/attention/builder.h"
#include "generators/attention/dropout.h"
#include "generators/lowering/bf16_dots.h"

namespace heed {

using namespace Halide;

// The element of the dropout mask is the contract's: it depends on the problem, not on tiles, splits or threads.
void AttentionBuilder::define_dropout(BlockChain &chain) {
    if (!cfg.has_dropout) {
        return;
    }
    auto wide = [](const Expr &x) { return cast<uint64_t>(x); };
    Expr row = (wide(field(task_sequence)) * wide(in.num_heads) + wide(head(st.row))) * wide(in.max_q_len) +
               wide(position(st.row));
    Expr element = row * wide(in.max_kv_len) + wide(key_position(chain, st.k));
    const DropoutStream stream = DropoutStream::of(in.dropout_seed, in.dropout_offset);
    Expr keeps = is_kept(stream, in.dropout_threshold, element);
    Args at = in_block({st.row, st.k});
    chain.kept(vars(at)) = hides(chain) ? chain.visible(at) && keeps : keeps;
}

// A hidden or dropped key is left out, not multiplied by 0: its value may be NaN. Where keys may be hidden and a block
// holds only numbers, which is known before (nonfinite_end), the product with 0 leaves them out as well; a block whose
// keys all rows see is not looked at.
void AttentionBuilder::define_values(BlockChain &chain) {
    if (cfg.packs_kv()) return define_packed_values(chain);
    Args at = in_block({st.row, st.d});
    const bool splits_loop = hides(chain) && cfg.tests_values();
    chain.numbers = RDom(0, chain.block, "numbers" + chain.suffix);
    if (splits_loop) {
        define_nonfinite_end(chain);
        chain.numbers.where(chain.numbers < chain.prefill.number_end(in_block({})));
    } else if (counts_seen(chain)) {
        chain.numbers.where(chain.numbers < seen_keys(chain));
    }
    if (cfg.has_kv_scales()) {
        Args each = in_block({st.row, st.k});
        chain.value_weights(vars(each)) = chain.weights(each) * in.v.scale(kv_head(), slot(chain, st.k));
    }
    chain.value_tile(vars(at)) = 0.f;
    Expr so_far = chain.value_tile(at), number = chain.numbers;
    Expr with = so_far + value_weight(chain, number) * value_element(chain, st.d, number);
    chain.value_tile(vars(at)) = cfg.has_dropout ? select(chain.kept(in_block({st.row, number})), with, so_far)
                                 : splits_loop   ? with
                                                 : if_visible(chain, number, with, so_far);
    if (row_lanes) {
        define_block_out(chain, splits_loop, [&](const Expr &key) { return value_element(chain, st.d, key); });
    } else {
        chain.block_out(vars(at)) = chain.value_tile(at);
    }
}

// Registers hold the sums of all keys of a block before they are added to those of the blocks before it. With
// `nonfinites` a loop over the keys of a block with NaN or infinities takes the place of the products, and rounds as
// they do: the value is hidden, not the product.
void AttentionBuilder::define_block_out(BlockChain &chain, bool nonfinites,
                                        const std::function<Expr(const Expr &key)> &value) {
    PrefillBlock &p = chain.prefill;
    Args at = in_block({st.row, st.d});
    chain.block_out(vars(at)) = 0.f;
    chain.block_out(vars(at)) = chain.block_out(at) + chain.value_tile(at);
    if (!nonfinites) return;
    // Sums of their own, not of the tile: LLVM spills some of those that two loops in a row add to.
    p.nonfinites = RDom(0, chain.block, "nonfinites" + chain.suffix);
    p.nonfinites.where(p.nonfinites < p.nonfinite_end(in_block({})));
    Expr k = cfg.packs_kv() ? second_key_first(p.nonfinites) : Expr(p.nonfinites);
    p.value_sums(vars(at)) = 0.f;
    p.value_sums(vars(at)) = p.value_sums(at) + value_weight(chain, k) * if_visible(chain, k, value(k), 0.f);
    p.with_sums = RDom(0, 1, "with_sums" + chain.suffix);
    p.with_sums.where(p.with_sums < p.nonfinite_end(in_block({})));
    chain.block_out(vars(at)) = chain.block_out(at) + p.value_sums(in_block({st.row, st.d + p.with_sums}));
}

// Dot products of bf16 add the second key of a pair first (VDPBF16PS, Intel SDM).
Expr AttentionBuilder::second_key_first(const Expr &k) { return k / 2 * 2 + (1 - k % 2); }

// What multiplies the values of a key.
Expr AttentionBuilder::value_weight(const BlockChain &chain, const Expr &key) const {
    Args at = in_block({st.row, key});
    if (!cfg.packs_kv()) return cfg.has_kv_scales() ? chain.value_weights(at) : chain.weights(at);
    return bf16_of_key(chain.bf16.weight_pairs(in_block({st.row, key / 2})), key);
}

// All bits of the exponent: of NaN and infinities.
Expr AttentionBuilder::exponent_of_nonfinites(const Type &type) {
    return cast(type, type.bits() == 16 ? 0x7f80 : 0x7f800000);
}

Expr AttentionBuilder::is_nonfinite(const Expr &bits) {
    Expr exponent = exponent_of_nonfinites(bits.type());
    return (bits & exponent) == exponent;
}

// Whether all rows see all keys of the block, by what is stored of each.
Expr AttentionBuilder::all_seen(BlockChain &chain) {
    PrefillBlock &p = chain.prefill;
    p.places = RDom({{0, cfg.row_block / cfg.lanes}, {0, chain.block}}, "places" + chain.suffix);
    Expr row = p.places.x * cfg.lanes + st.u;
    p.places.where(p.places.x * cfg.lanes < num_rows() - first_row());
    Args by_lane = in_block({st.u});
    p.all_seen(vars(by_lane)) = Internal::const_true();
    p.all_seen(vars(by_lane)) = p.all_seen(by_lane) && chain.visible(in_block({row, p.places.y}));
    Expr all = p.all_seen(in_block({0}));
    for (int u = 1; u < cfg.lanes; u++) all = all && p.all_seen(in_block({u}));
    return all;
}

// Whether some value of the block is NaN or infinite: the largest exponent, first by lanes.
void AttentionBuilder::define_nonfinite_end(BlockChain &chain) {
    const int lanes = cfg.lanes;
    chain.prefill.values = RDom({{0, padded(head_dim_v) / lanes}, {0, chain.block}}, "values" + chain.suffix);
    Expr d = chain.prefill.values.x * lanes + st.u, key = chain.prefill.values.y, end = chain.block;
    if (counts_seen(chain)) {
        end = seen_keys(chain);
        // Nothing is hidden then: no key of those that are multiplied.
        Expr none = cfg.per_logit() ? Internal::const_false() : all_see(chain) && end == seen_keys(chain);
        chain.prefill.values.where(key < select(none, 0, end));
    } else {
        chain.prefill.values.where(key < select(all_seen(chain), 0, end));
    }
    Expr bits = reinterpret<uint32_t>(value_element(chain, d, key));
    Expr exponent = exponent_of_nonfinites(bits.type());
    Args by_lane = in_block({st.u});
    chain.prefill.exponents(vars(by_lane)) = cast(bits.type(), 0);
    chain.prefill.exponents(vars(by_lane)) = max(chain.prefill.exponents(by_lane), bits & exponent);
    Expr largest = chain.prefill.exponents(in_block({0}));
    for (int u = 1; u < lanes; u++) largest = max(largest, chain.prefill.exponents(in_block({u})));
    chain.prefill.nonfinite_end(vars(in_block({}))) = select(largest == exponent, end, 0);
    chain.prefill.number_end(vars(in_block({}))) = select(largest == exponent, 0, end);
}

}  // namespace heed
