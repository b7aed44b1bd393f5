// Packed keys and values: the weighted values of a block.
#include "generators/attention/builder.h"
#include "generators/common/ceil_div.h"
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/bf16_product.h"

namespace heed {

using namespace Halide;

namespace {

Expr without_nonfinites(const Expr &word) {
    const Expr low = Expr(0x7f80u), high = Expr(0x7f800000u);
    Expr number = select((word & low) == low, word & Expr(0xffff0000u), word);
    return select((word & high) == high, number & Expr(0x0000ffffu), number);
}

}  // namespace

// Tiles multiply every key of a block. Where some may be hidden and the block has NaN or infinities, matrix tiles read
// a copy in which those are zeros, and a loop adds those that rows do see.
void AttentionBuilder::define_packed_values(BlockChain &chain) {
    const bool hides_values = hides(chain);
    if (!cfg.bf16_tiles) return define_packed_dots(chain);
    const int chunks = chain.block / packed_unit;
    auto stored = [&](const Expr &p, const Expr &d, const Expr &c) {
        Expr chunk = inside(packed_key(chain) / packed_unit + c, cfg.kv_block / packed_unit);
        return in_packed_block(chain, &PackedBlocks::v, {p, d, chunk});
    };
    if (hides_values) {
        Expr some = in_packed_block(chain, &PackedBlocks::nonfinite, {}) != cast<uint8_t>(0);
        chain.prefill.nonfinite_end(vars(in_block({}))) =
            select(some, counts_seen(chain) ? seen_keys(chain) : chain.block, 0);
        chain.bf16.v_numbers(vars(in_block({st.p, st.d, st.c}))) = without_nonfinites(stored(st.p, st.d, st.c));
    }
    Args at = in_block({st.row, st.d});
    chain.numbers = RDom({{0, tile_edge}, {0, chunks}}, "numbers" + chain.suffix);
    Expr pair = chain.numbers.x, chunk = chain.numbers.y;
    Expr words = stored(pair, st.d, chunk);
    if (hides_values) {
        Expr numbers = chain.bf16.v_numbers(in_block({pair, st.d, chunk}));
        words = select(chain.prefill.nonfinite_end(in_block({})) > 0, numbers, words);
    }
    Expr weights = chain.bf16.weight_pairs(in_block({st.row, tile_edge * chunk + pair}));
    chain.block_out(vars(at)) = 0.f;
    chain.block_out(vars(at)) = bf16_dot(chain.block_out(at), weights, words);
    if (!hides_values) return;

    chain.prefill.nonfinites = RDom(0, chain.block, "nonfinites" + chain.suffix);
    Expr k = chain.prefill.nonfinites, nothing = -0.f;  // whatever the sum, -0 adds nothing
    chain.prefill.nonfinites.where(k < chain.prefill.nonfinite_end(in_block({})));
    Expr word = stored(k % packed_unit / 2, st.d, k / packed_unit);
    Expr bits = cast<uint16_t>(word >> (16 * cast<uint32_t>(k % 2)));
    Expr value = select(is_nonfinite(bits), to_float(cfg.dtype, bits), nothing);
    chain.block_out(vars(at)) = chain.block_out(at) + value_weight(chain, k) * if_visible(chain, k, value, nothing);
}

void AttentionBuilder::define_packed_dots(BlockChain &chain) {
    const bool hides_values = hides(chain);
    const int pairs = chain.block / 2;
    const auto stored = [&](const Expr &p) {
        Expr pair = inside(packed_key(chain) / 2 + p, cfg.kv_block / 2);
        return in_packed_block(chain, &PackedBlocks::v, {st.d / 2, st.d % 2, pair});
    };
    chain.numbers = RDom(0, pairs, "numbers" + chain.suffix);
    Expr pair = chain.numbers;
    if (hides_values) {
        Expr some = in_packed_block(chain, &PackedBlocks::nonfinite, {}) != cast<uint8_t>(0);
        Expr keys = counts_seen(chain) ? seen_keys(chain) : Expr(chain.block);
        chain.prefill.nonfinite_end(vars(in_block({}))) = select(some, ceil_div(keys, 2) * 2, 0);
        chain.prefill.number_end(vars(in_block({}))) = select(some, 0, ceil_div(keys, 2));
        chain.numbers.where(pair < chain.prefill.number_end(in_block({})));
    }
    Args at = in_block({st.row, st.d});
    chain.value_tile(vars(at)) = 0.f;
    chain.value_tile(vars(at)) =
        bf16_dot(chain.value_tile(at), chain.bf16.weight_pairs(in_block({st.row, pair})), stored(pair));
    define_block_out(chain, hides_values, [&](const Expr &key) { return bf16_of_key(stored(key / 2), key); });
}

}  // namespace heed
