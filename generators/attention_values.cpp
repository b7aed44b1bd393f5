// The algorithm on one block of keys, its last part: weighted values.
#include "attention_builder.h"
#include "bf16_dots.h"
#include "dropout.h"

namespace heed {

using namespace Halide;

// The element of the dropout mask is the contract's: it depends on the problem, not on tiles, splits or threads.
void AttentionBuilder::define_dropout(BlockChain &chain) {
    if (!cfg.has_dropout) {
        return;
    }
    auto wide = [](const Expr &x) { return cast<uint64_t>(x); };
    Expr row = (wide(field(TaskField::sequence)) * wide(in.num_heads) + wide(head(st.row))) * wide(in.max_q_len) +
               wide(position(st.row));
    Expr element = row * wide(in.max_kv_len) + wide(key_position(chain, st.k));
    const DropoutStream stream = DropoutStream::of(in.dropout_seed, in.dropout_offset);
    Expr word = philox_word(stream.seed_lo, stream.seed_hi, stream.offset_lo, stream.offset_hi, element);
    Expr keeps = dropout_keeps(word, in.dropout_threshold);
    Args at = in_block({st.row, st.k});
    chain.kept(vars(at)) = hides(chain) ? chain.visible(at) && keeps : keeps;
}

// A hidden or dropped key is left out, not multiplied by 0: its value may be NaN. Where keys may be hidden and a block
// holds only numbers, which is known before (special_end), the product with 0 leaves them out as well.
void AttentionBuilder::define_values(BlockChain &chain) {
    Args at = in_block({st.row, st.d});
    const bool splits_loop = hides(chain) && cfg.tests_values();
    chain.numbers = RDom(0, cfg.bf16_dots ? chain.block / 2 : chain.block, "numbers" + chain.suffix);
    if (splits_loop) {
        define_special_end(chain);
        chain.numbers.where(chain.numbers < chain.number_end(in_block({})));
    }
    if (cfg.has_kv_scales()) {
        Args each = in_block({st.row, st.k});
        chain.value_weights(vars(each)) = chain.weights(each) * in.v.scale(kv_head(), slot(chain, st.k));
    }
    chain.value_tile(vars(at)) = 0.f;
    Expr so_far = chain.value_tile(at), number = chain.numbers;
    Expr with = cfg.bf16_dots ? with_pair(chain, so_far, number)
                              : so_far + value_weight(chain, number) * element(chain, in.v, chain.v_rows, st.d, number);
    chain.value_tile(vars(at)) = cfg.has_dropout ? select(chain.kept(in_block({st.row, number})), with, so_far)
                                 : splits_loop   ? with
                                                 : if_visible(chain, number, with, so_far);
    if (splits_loop) {
        chain.specials = RDom(0, chain.block, "specials" + chain.suffix);
        chain.specials.where(chain.specials < chain.special_end(in_block({})));
        // The value is hidden, not the product: both loops must round alike, as an FMA where there is one.
        Expr k = chain.specials, value = element(chain, in.v, chain.v_rows, st.d, k);
        chain.value_tile(vars(at)) = so_far + value_weight(chain, k) * if_visible(chain, k, value, 0.f);
    }
    chain.block_out(vars(at)) = chain.value_tile(at);
}

// The sum with the values of two keys.
Expr AttentionBuilder::with_pair(BlockChain &chain, const Expr &so_far, const Expr &pair) const {
    auto value = [&](const Expr &k) { return in.v.stored(st.e / 2, kv_head(), slot(chain, k)); };
    chain.v_pairs(vars(in_block({st.e, st.k}))) = select(st.e % 2 == 0, value(2 * st.k), value(2 * st.k + 1));
    auto half = [&](int i) { return chain.v_pairs(in_block({2 * st.d + i, pair})); };
    return bf16_dot(so_far, chain.weight_pairs(in_block({st.row, pair}))[0], bf16_pair(half(0), half(1)));
}

// What multiplies the values of a key.
Expr AttentionBuilder::value_weight(const BlockChain &chain, const Expr &key) const {
    Args at = in_block({st.row, key});
    if (!cfg.bf16_dots) return cfg.has_kv_scales() ? chain.value_weights(at) : chain.weights(at);
    Expr both = chain.weight_pairs(in_block({st.row, key / 2}))[0];
    return select(key % 2 == 0, bf16_half(both, 0), bf16_half(both, 1));
}

// Whether some value of the block is NaN or infinite: the largest exponent, first by lanes.
void AttentionBuilder::define_special_end(BlockChain &chain) {
    const int lanes = cfg.lanes;
    chain.values = RDom({{0, padded(head_dim_v) / lanes}, {0, chain.block}}, "values" + chain.suffix);
    Expr d = chain.values.x * lanes + st.u, key = chain.values.y;
    Expr bits = cfg.bf16_dots ? in.v.stored(d, kv_head(), slot(chain, key))
                              : reinterpret<uint32_t>(element(chain, in.v, chain.v_rows, d, key));
    Expr exponent = cast(bits.type(), cfg.bf16_dots ? 0x7f80 : 0x7f800000);
    Args by_lane = in_block({st.u});
    chain.exponents(vars(by_lane)) = cast(bits.type(), 0);
    chain.exponents(vars(by_lane)) = max(chain.exponents(by_lane), bits & exponent);
    Expr largest = chain.exponents(in_block({0}));
    for (int u = 1; u < lanes; u++) largest = max(largest, chain.exponents(in_block({u})));
    chain.special_end(vars(in_block({}))) = select(largest == exponent, chain.block, 0);
    Expr end = chain.ranged ? Expr(chain.seen_end(in_block({}))) : Expr(chain.block);
    chain.number_end(vars(in_block({}))) = select(largest == exponent, 0, cfg.bf16_dots ? (end + 1) / 2 : end);
}

}  // namespace heed
