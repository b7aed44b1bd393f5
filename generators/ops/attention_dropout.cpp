// Which weights dropout keeps. In fragments as bits of words of lanes: two lanes have the keys of a counter, and each
// computes those of half of the eights of columns.
#include "generators/ops/attention_device.h"
#include "generators/ops/shared_counters.h"

namespace heed {

using namespace Halide;

namespace {

// Where a lane's bit of a column is, before it is moved by what the lane has of a counter.
Expr bit_of_lane(const Expr &of_column) { return low_word(of_column / 8 * 8 + of_column % 2); }

}  // namespace

// The number of the first element of a query's row in the mask.
Expr AttentionDevice::first_element(const Row &of_query) const {
    const Expr line = wide(of_query.sequence) * wide(num_heads) + wide(of_query.head);
    return (line * wide(max_q_len) + wide(of_query.i)) * wide(max_kv_len);
}

void AttentionDevice::define_kept() {
    const Expr key = key_of(key_in_step(column, row), across, down);
    const DropoutStream stream = DropoutStream::on_device(args.dropout_seed, args.dropout_offset);
    const Expr keeps = is_kept(stream, args.dropout_threshold, first_element(query(row, down)) + wide(key));
    kept(column, row, across, down) = branched(drops(), cast<int32_t>(keeps), Expr(1));
}

void AttentionDevice::define_kept_of_fragments() {
    const std::vector<Var> of_lane = {u, row, across, down};
    const std::vector<Expr> own(of_lane.begin(), of_lane.end());
    first_elements(of_block, down) = first_element(query_in(block_of(down), of_block));
    const auto element = [&](const Expr &of_column) {
        return first_elements(query_of(row), down) + wide(key_of(key_in_step(of_column, row), across, down));
    };
    const DropoutStream stream = DropoutStream::on_device(args.dropout_seed, args.dropout_offset);
    const Expr lane = u % 2, first = (2 * over_counters + lane) * 8, is_on = same_for_block(drops());
    const Expr counter = element(first + u / 2 * keys_of_counter) >> 2;
    const Expr four = kept_of_counter(stream, args.dropout_threshold, counter);
    counted(of_lane) = Expr(0u);
    counted(of_lane) = select(is_on, counted(own) | four << bit_of_lane(first), counted(own));
    gathered(of_lane) = select(is_on, counted(own) | counted(other_lane(u, 1), row, across, down), Expr(0u));

    kept(of_lane) = select(shares_counters(max_kv_len), gathered(own) >> low_word(lane * 2), Expr(0u));
    const Expr one = over_uncounted.y * 8 + over_uncounted.x;
    const Expr bit =
        select(is_kept(stream, args.dropout_threshold, element(one + u * 2)), Expr(1u) << bit_of_lane(one), Expr(0u));
    kept(of_lane) = select(is_on, kept(own) | bit, kept(own));
}

// Whether dropout keeps the weight of (column, row, across, down).
Expr AttentionDevice::keeps_weight() const {
    if (!tile.in_fragments) return kept(column, row, across, down) != 0;
    return (kept(of_row(column, {row, across, down})) & (Expr(1u) << bit_of_lane(column))) != Expr(0u);
}

}  // namespace heed
