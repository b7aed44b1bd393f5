#include "generators/attention/probs.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

namespace {

Expr minus_infinity() { return reinterpret<float>(Expr(INT32_MIN + 0x7f800000)); }

// Values are selected as bits: the default float mode may assume that no value is infinite.
Expr as_bits(const Expr &x) { return reinterpret<int32_t>(x); }

}  // namespace

ProbsScore::Logit ProbsScore::logit(LogitChanges changes, LogitUnits units) const {
    changes.bias = bias_or_none();
    changes.position = token_position(row, position_offset);
    if (changes.alibi_slopes.defined()) changes.distance = token_distance(key, row, position_offset);
    const Expr by_numbers = key >= first_visible(row, visible_begin) && key < end_visible(row, visible_end, kv_len);
    return {changes, changed_logit(product, changes, units),
            is_visible({in_range.defined() ? in_range : by_numbers, mask_form != no_mask, mask, mask_form, changes.bias,
                        user_visible})};
}

Expr ProbsScore::added(const LogitChanges &changes) const {
    const Expr of_bias = bias_or_none(), distance = token_distance(key, row, position_offset);
    const Expr allowed = is_visible({Expr(), mask_form != no_mask, mask, mask_form, of_bias, Expr()});
    const Expr sum = of_bias + changes.bias_of_place(changes.alibi_slopes, distance);
    return reinterpret<float>(select(allowed, as_bits(sum), as_bits(minus_infinity())));
}

Expr ProbsScore::bias_or_none() const {
    const Expr element = bias_16.defined() ? select(bias_form == bias_of_dtype, bias_16, bias) : bias;
    return select(bias_form == no_bias, 0.f, element);
}

Expr ProbsScore::value(const LogitChanges &changes) const {
    const Logit found = logit(changes);
    Expr masked = select(found.visible, as_bits(found.changed.value), as_bits(minus_infinity()));
    Expr shown = select(mode == raw_scores, found.changed.scaled, found.changed.capped);
    Expr unmasked = select(key < kv_len, as_bits(shown), 0);
    return reinterpret<float>(select(mode >= masked_scores, masked, unmasked));
}

std::vector<Expr> ProbsRows::at(const Expr &lane) const {
    std::vector<Expr> place = {lane};
    place.insert(place.end(), row.begin(), row.end());
    return place;
}

void ProbsRows::define_lane_max(const Expr &score) {
    lane_max(at(u)) = lowest_logit();
    lane_max(at(u)) = max(lane_max(at(u)), select(is_negative_infinity(score), lowest_logit(), score));
}

void ProbsRows::define_row_max() {
    row_max(row) = lowest_logit();
    row_max(row) = max(row_max(row), lane_max(at(over_lanes)));
}

Expr ProbsRows::weight(const Expr &score, const std::vector<Expr> &of_row) const {
    return exp2_nonpositive((score - row_max(of_row)) * log2_e);
}

void ProbsRows::define_lane_sum(const Expr &weight) {
    lane_sum(at(u)) = 0.f;
    lane_sum(at(u)) += weight;
}

void ProbsRows::define_row_sum() {
    row_sum(row) = 0.f;
    row_sum(row) += lane_sum(at(over_lanes));
}

void ProbsRows::define_factor(const Expr &sink) {
    factor(row) = with_sink(row_max(row) * log16_e, row_sum(row), sink, LogitUnits::log16).factor();
}

// A strict operation in the kernel keeps its predicated loads free of the assumption that what they load is finite, on
// which the compiler would delete the tests for minus infinity.
Expr ProbsRows::result(const Expr &mode, const Expr &score, const Expr &weight, const std::vector<Expr> &of_row) const {
    const Expr probability = strict_float(weight * factor(of_row));
    return reinterpret<float>(select(mode == probabilities, as_bits(probability), as_bits(score)));
}

ProbsLines::ProbsLines(const Expr &width)
    : ProbsRows(RDom(0, ceil_div(width, lanes), "over_blocks"), lanes, {Var("i")}), keys(0, width, "keys"),
      after_keys(width, ceil_div(width, lanes) * lanes - width, "after_keys") {}

Expr ProbsLines::of_lanes(const Func &by_lane, Operator join, std::vector<Func> &halves) const {
    constexpr int last = 4;
    Func whole = by_lane;
    for (int half = lanes / 2; half >= last; half /= 2) {
        halves.emplace_back(by_lane.name() + "_" + std::to_string(half));
        halves.back()(u, i) = join(whole(u, i), whole(u + half, i));
        whole = halves.back();
    }
    return join(join(whole(0, i), whole(2, i)), join(whole(1, i), whole(3, i)));
}

Expr ProbsLines::define(const Var &j, const Expr &row, const Score &score, const Expr &mode, const Expr &sink) {
    scores(j, i) = undef<float>();
    scores(keys, i) = score(keys, i);
    scores(after_keys, i) = minus_infinity();
    define_lane_max(scores(over_blocks * lanes + u, i));
    row_max(i) = of_lanes(
        lane_max, [](const Expr &a, const Expr &b) { return max(a, b); }, halves_of_max);
    weights(j, i) = weight(scores(j, i), {i});
    define_lane_sum(weights(over_blocks * lanes + u, i));
    row_sum(i) = of_lanes(
        lane_sum, [](const Expr &a, const Expr &b) { return a + b; }, halves_of_sum);
    define_factor(sink);
    return result(mode, scores(j, row), weights(j, row), {row});
}

std::vector<Func> ProbsLines::of_row() const {
    std::vector<Func> list = {lane_max, row_max, lane_sum, row_sum, factor};
    for (const auto &halves : {halves_of_max, halves_of_sum}) list.insert(list.end(), halves.begin(), halves.end());
    return list;
}

}  // namespace heed
