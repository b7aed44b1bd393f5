#include "generators/ops/probs_device.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

AttentionProbsDevice::AttentionProbsDevice(ElementType type, ElementType kv_type, const ProductTile &tile, int lanes)
    : DeviceScores({type, kv_type}),
      ProbsRows(RDom(0, tile.columns / lanes, 0, select(mode == probabilities, ceil_div(max_kv_len, tile.columns), 0),
                     "over_blocks"),
                lanes, {Var("row"), Var("down")}),
      tile(tile), all(0, tile.columns, 0, tile.rows, 0, ceil_div(max_kv_len, tile.columns), 0,
                      sequences * num_heads * ceil_div(max_q_len, tile.rows), "all"),
      faults(0, select(page_size > 0 && is_given(device_status), max_kv_len, 0), 0, sequences, "faults"), type(type),
      kv_type(kv_type) {
    const Row own = place(row, down);
    query_row(row, down) = select(exists(own),
                                  after(after(after(q, own.sequence, q_batch), own.head, q_head),
                                        field(sequence_first_q, own.sequence) + own.i, q_token),
                                  cast<uint64_t>(0));
    for (int sweep = 0; sweep < 3; sweep++) {
        tiles.emplace_back(tile, head_dim);
        define_tile(tiles.back());
    }
    const Expr key = over_blocks.x * lanes + u;
    const Expr is_first = over_blocks.y * tile.columns + key < max_kv_len;
    define_lane_max(score(tiles[0], key, row, over_blocks.y, down));
    define_row_max();
    define_lane_sum(select(is_first, weight(score(tiles[1], key, row, over_blocks.y, down), {row, down}), 0.f));
    define_row_sum();
    factor(row, down) = factor_with(of_head(sink, sink_head, own.head, negative_infinity_bits));

    const Row at = place(all.y, all.w);
    const Expr found = score(tiles[2], all.x, all.y, all.z, all.w);
    const Expr value = result(mode, found, weight(found, {all.y, all.w}), {all.y, all.w});
    const Expr bits = select(exists(at), reinterpret<int32_t>(value), 0);
    Results::add(stored(reinterpret<float>(bits), at, key_of(all.x, all.z)));

    const Expr sequence = first_sequence + faults.y;
    const Expr wrong = faults.x < field(sequence_kv_len, sequence) && field(sequence_q_len, sequence) > 0 &&
                       slot_of(faults.x, sequence).wrong;
    Results::add(store_at_if_zero(wrong, device_status, cast<uint32_t>(sequence * 8 + fault_of_page)));
}

AttentionProbsDevice::Row AttentionProbsDevice::place(const Expr &in_block, const Expr &block) const {
    const Expr of_head = ceil_div(max_q_len, tile.rows), line = block / of_head, s = line / num_heads;
    const Expr i = (block - line * of_head) * tile.rows + in_block;
    return {first_sequence + s, line - s * num_heads, min(i, max_q_len - 1)};
}

Expr AttentionProbsDevice::key_of(const Expr &column, const Expr &key_tile) const {
    return min(key_tile * tile.columns + column, max_kv_len - 1);
}

// A row of a tensor of keys.
Expr AttentionProbsDevice::key_row(const Expr &first, const Expr &of_batch, const Expr &of_head, const Expr &of_token,
                                   const Row &at, const Expr &j) const {
    const Slot key = slot_of(j, at.sequence);
    const Expr kv_head = at.head / (num_heads / num_kv_heads);
    return after(after(after(first, key.page, of_batch), kv_head, of_head), key.slot, of_token);
}

void AttentionProbsDevice::define_tile(Tile &of) const {
    const Row at = place(row, down);
    const Expr j = key_of(of.column, across), has_key = j < field(sequence_kv_len, at.sequence);
    of.key_row(of.column, across, down) =
        select(has_key, key_row(k, k_batch, k_head, k_token, at, j), cast<uint64_t>(0));
    const Expr x = query_row(row, down), w = of.key_row(of.column, across, down);
    of.define_product({type, {down}, x, is_given(x)}, {kv_type, {across, down}, w, is_given(w)}, {across, down});
    of.products(of.column, row, across, down) = of.sum(of.column, row, across, down);
}

Expr AttentionProbsDevice::score(const Tile &of, const Expr &column, const Expr &in_block, const Expr &key_tile,
                                 const Expr &block) const {
    const Row at = place(in_block, block);
    const Expr j = key_of(column, key_tile);
    Expr product = of.products(column, in_block, key_tile, block);
    if (kv_type == ElementType::i8) {
        const Expr scale = key_row(k_scale, k_scale_batch, k_scale_head, k_scale_token, at, j);
        product = product * load_at_if(j < field(sequence_kv_len, at.sequence), Float(32), scale, 0);
    }
    return score_of(product, mode, at, j);
}

Expr AttentionProbsDevice::stored(const Expr &value, const Row &at, const Expr &j) const {
    const Expr to = after(after(after(out, at.sequence, out_batch), at.head, out_head), at.i, out_row);
    if (type == ElementType::f32) return store_at(to, j, value);
    return store_at_if(as_f32 != 0, to, j, value) + store_at_if(as_f32 == 0, to, j, from_float(type, value));
}

}  // namespace heed
