// Attention in fragments of tensor cores: numbers of a row are those of the four lanes that have columns of it.
#include <limits>

#include "generators/lowering/carried.h"
#include "generators/ops/attention_device.h"

namespace heed {

using namespace Halide;

namespace {

constexpr float huge_base = 1 << 20;  // half a unit of it is 2^-4

// The lane whose number differs by one bit.
Expr other_lane(const Var &u, int bit) { return clamp(u + bit - u / bit % 2 * (2 * bit), 0, 3); }

}  // namespace

std::vector<Expr> AttentionDevice::of_row(const Expr &column, std::vector<Expr> row) const {
    if (tile.in_fragments) row.insert(row.begin(), column % 8 / 2);
    return row;
}

// What exponents are made of: the powers are those of 2.
Expr AttentionDevice::exponent_unit() const {
    // A factor of 0 would make NaN of a hidden logit; the least normal number leaves every weight exactly 1.
    const float least = std::numeric_limits<float>::min();
    return max(abs(scale) * log2_e, least);
}

// Where a base is so large that its rounding could carry weights out of range, the maximum is subtracted first. By
// rows, so that none depends on another.
Expr AttentionDevice::is_huge(const std::vector<Expr> &at) const {
    return in_repetition(at[2]) && abs(row_max(at) * exponent_unit()) > huge_base;
}

// Numbers that are none, of which hidden values may be the reason: a weight of 0 does not hide them.
void AttentionDevice::define_doubts(const Expr &sum, const Expr &largest) {
    const auto is_nan = [](const Expr &x) { return (as_word(x) & Expr(0x7fffffffu)) > Expr(0x7f800000u); };
    // The weights of a row that sees a key may all be too small.
    const Expr sees_key = as_word(largest) != as_word(lowest_logit());
    const Expr huge = sees_key && abs(largest * exponent_unit()) > huge_base;
    doubts(u, row, down) = cast<int32_t>(is_nan(sum) || huge);
    const Expr element = state(over_pairs.y * 8 + u * 2 + over_pairs.x, row, down);
    doubts(u, row, down) = doubts(u, row, down) | cast<int32_t>(is_nan(element));
}

Expr AttentionDevice::carried_number(const Func &f, const Expr &lane, const Expr &step) const {
    return carried(f, row * tile.lanes + lane, step);
}

// The sum of all lanes, and the maximum, once neither is in doubt.
std::pair<Expr, Expr> AttentionDevice::sum_of_lanes(const Expr &sum, const Expr &largest) {
    define_doubts(sum, largest);
    const Expr sure = doubts(u, row, down);
    const auto in_lane = [&](const Expr &lane) { return std::vector<Expr>{lane, row, down}; };
    last_sum(u, row, down) = once(sum, sure);
    pair_sum(u, row, down) = last_sum(u, row, down) + last_sum(in_lane(other_lane(u, 1)));
    return {pair_sum(u, row, down) + pair_sum(in_lane(other_lane(u, 2))), once(largest, sure)};
}

void AttentionDevice::define_softmax_of_fragments() {
    const std::vector<Var> of_lane = {u, row, across, down};
    const std::vector<Expr> own(of_lane.begin(), of_lane.end());
    const auto in_lane = [&](const Expr &lane) { return std::vector<Expr>{lane, row, across, down}; };
    const Expr unit = exponent_unit(), is_first = across == 0, in_columns = over_columns.y * 8 + u * 2 + over_columns.x;
    old_max(of_lane) = branched(is_first, lowest_logit(), carried_number(row_max, u, across));
    lane_max(of_lane) = old_max(own);
    lane_max(of_lane) = maximum_on_device(lane_max(own), logits(in_columns, row, across, down));
    pair_max(of_lane) = maximum_on_device(lane_max(own), lane_max(in_lane(other_lane(u, 1))));
    row_max(of_lane) = maximum_on_device(pair_max(own), pair_max(in_lane(other_lane(u, 2))));
    // Finite: of a row that has seen no key all weights are 0.
    base(of_lane) = select(is_huge(own), 0.f, maximum_on_device(row_max(own) * unit, lowest_logit()));
    // Exactly 1 where the maximum stays: the base's rounding would make it nearly 1.
    const Expr old = old_max(own) - select(is_huge(own), row_max(own), 0.f);
    const Expr shrinks = exp2_on_device(fused_on_device(old, unit, -base(own)));
    factor(of_lane) = select(as_word(old_max(own)) == as_word(row_max(own)), 1.f, shrinks);

    const std::vector<Expr> of_column = of_row(column, {row, across, down});
    const Expr logit = logits(column, row, across, down);
    const Expr less = logit - select(is_huge(of_column), row_max(of_column), 0.f);
    const Expr weight = exp2_on_device(fused_on_device(less, unit, -base(of_column)));
    const Expr marks = in_repetition(across) && is_negative_infinity(logit);
    weights(column, row, across, down) = as_float(select(marks, Expr(left_out_bits), as_word(weight)));
    lane_sum(of_lane) = branched(is_first, 0.f, carried_number(row_sum, u, across) * factor(own));
    lane_sum(of_lane) += weights(in_columns, row, across, down);
    row_sum(of_lane) = lane_sum(own);
}

}  // namespace heed
