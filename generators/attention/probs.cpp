#include "generators/attention/probs.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

namespace {

Expr minus_infinity() { return reinterpret<float>(Expr(INT32_MIN + 0x7f800000)); }

// Values are selected as bits: the default float mode may assume that no value is infinite.
Expr as_bits(const Expr &x) { return reinterpret<int32_t>(x); }

// A weight_for_bf16() of NaN makes the sum negative infinity. (LLVM takes it for finite: the sign is what is asked
// for.)
Expr nan_of_negative(const Expr &sum) { return reinterpret<float>(select(as_bits(sum) < 0, 0x7fc00000, as_bits(sum))); }

// What is not negative as bf16, to nearest, ties down; a NaN of arithmetic stays one.
Expr rounded_weight(const Expr &x) { return cast<uint16_t>((reinterpret<uint32_t>(x) + 0x7fff) >> 16); }

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
    return exp2_nonpositive(logarithm_of_weight(score, of_row));
}

Expr ProbsRows::logarithm_of_weight(const Expr &score, const std::vector<Expr> &of_row) const {
    return (score - row_max(of_row)) * log2_e;
}

void ProbsRows::define_lane_sum(const Expr &weight) {
    lane_sum(at(u)) = 0.f;
    lane_sum(at(u)) += weight;
}

void ProbsRows::define_row_sum() {
    row_sum(row) = 0.f;
    row_sum(row) += lane_sum(at(over_lanes));
}

Expr ProbsRows::factor_with(const Expr &sink) const {
    return with_sink(row_max(row) * log16_e, row_sum(row), sink, LogitUnits::log16).factor();
}

// A strict operation in the kernel keeps its predicated loads free of the assumption that what they load is finite, on
// which the compiler would delete the tests for minus infinity.
Expr ProbsRows::result(const Expr &mode, const Expr &score, const Expr &weight, const std::vector<Expr> &of_row) const {
    const Expr probability = strict_float(weight * factor(of_row));
    return reinterpret<float>(select(mode == probabilities, as_bits(probability), as_bits(score)));
}

ProbsLines::ProbsLines(const Expr &width, const Expr &num_keys, bool for_bf16)
    : ProbsRows(RDom(0, ceil_div(width, lanes), "over_blocks"), lanes, {Var("i")}), keys(0, width, "keys"),
      after_keys(width, ceil_div(width, lanes) * lanes - width, "after_keys"),
      whole_blocks(0, num_keys / lanes, "whole_blocks"),
      last_blocks(num_keys / lanes, ceil_div(width, lanes) - num_keys / lanes, "last_blocks"),
      in_whole(0, num_keys / lanes * lanes, "in_whole"),
      in_last(num_keys / lanes * lanes, (ceil_div(width, lanes) - num_keys / lanes) * lanes, "in_last"),
      for_bf16(for_bf16) {}

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

Expr ProbsLines::define(const Var &j, const std::function<Expr(const Expr &)> &score, const Expr &mode,
                        const Expr &sink) {
    scores(j, i) = undef<float>();
    scores(keys, i) = score(keys);
    scores(after_keys, i) = minus_infinity();
    define_lane_max(scores(over_blocks * lanes + u, i));
    define_row_of_max();
    weights(j, i) = weight_of(scores(j, i));
    define_factor_of_weights(sink);
    return result(mode, scores(j, i), weights(j, i), {i});
}

Expr ProbsLines::define_probability(const Var &j, const Expr &num_keys, const std::function<Expr(const Expr &)> &score,
                                    const Expr &sink) {
    const auto visible = [&](const Expr &key, const Expr &hidden) {
        return reinterpret<float>(select(key < num_keys, as_bits(score(key)), as_bits(hidden)));
    };
    lane_max(u, i) = lowest_logit();
    lane_max(u, i) = max(lane_max(u, i), score(whole_blocks * lanes + u));
    lane_max(u, i) = max(lane_max(u, i), visible(last_blocks * lanes + u, lowest_logit()));
    define_row_of_max();
    weights(j, i) = undef<float>();
    weights(in_whole, i) = weight_of(score(in_whole));
    weights(in_last, i) = weight_of(visible(in_last, minus_infinity()));
    define_factor_of_weights(sink);
    return probability(j);
}

Expr ProbsLines::probability(const Expr &key) const { return strict_float(weights(key, i) * factor(i)); }

// Of floats strict, as sums and factors are: a row has the same bits in the loops of each form.
Expr ProbsLines::weight_of(const Expr &score) const {
    if (!for_bf16) return exp2_nonpositive(strict_float(logarithm_of_weight(score, {i})));
    return weight_for_bf16((score - row_max(i)) * (log16_e * fixed_unit) + fixed_reference(0.f));
}

void ProbsLines::define_row_of_max() {
    row_max(i) = of_lanes(
        lane_max, [](const Expr &a, const Expr &b) { return max(a, b); }, halves_of_max);
}

void ProbsLines::define_factor_of_weights(const Expr &sink) {
    define_lane_sum(weights(over_blocks * lanes + u, i));
    const Expr sum = of_lanes(
        lane_sum, [](const Expr &a, const Expr &b) { return strict_float(a + b); }, halves_of_sum);
    row_sum(i) = for_bf16 ? nan_of_negative(sum) : sum;
    factor(i) = strict_float(factor_with(sink));
}

std::vector<Func> ProbsLines::of_row() const {
    std::vector<Func> list = {lane_max, row_max, lane_sum, row_sum, factor};
    for (const auto &halves : {halves_of_max, halves_of_sum}) list.insert(list.end(), halves.begin(), halves.end());
    return list;
}

AttentionProbsKernel::AttentionProbsKernel(ElementType dtype, bool has_unsigned_words)
    : AttentionProbsArguments({dtype, dtype}), for_bf16(dtype == ElementType::bf16 && has_unsigned_words),
      lines(width(), num_keys(), false), lines_16(width(), num_keys(), for_bf16), plain(width(), num_keys(), for_bf16) {
    const auto score_of_key = [this](const Expr &key) { return score(key); };
    // Rounded, as scores in memory are: a row has the same bits in a block of either kind.
    const auto plain_score = [this](const Expr &key) {
        return strict_float(products(key, i) * strict_float(scale * temperature));
    };
    const auto stored = [&](const Expr &p) { return for_bf16 ? rounded_weight(p) : from_float(dtype, p); };
    const bool is_f32 = dtype == ElementType::f32;
    scores(j, i) = score(j);
    if (!is_f32) probs(j, i) = lines.define(j, score_of_key, mode, sink);
    Expr value = from_float(dtype, (is_f32 ? lines : lines_16).define(j, score_of_key, mode, sink));
    if (for_bf16) value = select(makes_probabilities(), stored(lines_16.probability(j)), value);
    const Expr of_plain = plain.define_probability(j, num_keys(), plain_score, sink);
    own()(j, i) = select(makes_plain(), stored(of_plain), value);
    state_buffer_contract();
}

Expr AttentionProbsKernel::score(const Expr &key) const {
    ProbsScore in = {products(key, i), mode,         key,       first_row + i, kv_len,   visible_begin, visible_end,
                     position_offset,  mask(key, i), mask_form, bias(key, i),  bias_form};
    if (types.own != ElementType::f32) in.bias_16 = to_float(types.own, bias_16(key, i));
    LogitChanges changes = logit_changes(*this);
    changes.selects_growth = true;
    changes.set_of_head(*this);
    return in.value(changes);
}

Expr AttentionProbsKernel::keeps_logits() const {
    const LogitChanges changes = logit_changes(*this);
    return changes.cap_off() && changes.growth_off() && alibi_slopes == 0.f;
}

Expr AttentionProbsKernel::is_plain() const { return mask_form == no_mask && bias_form == no_bias && keeps_logits(); }

Expr AttentionProbsKernel::has_mask_only() const {
    return bias_form == no_bias && mask.dim(0).stride() == 1 && keeps_logits();
}

Expr AttentionProbsKernel::has_bias_only() const {
    return mask_form == no_mask && bias_form == bias_of_f32 && bias.dim(0).stride() == 1 && keeps_logits();
}

Expr AttentionProbsKernel::makes_plain() const {
    const Expr last_row = first_row + products.dim(1).extent() - 1;
    return is_plain() && makes_probabilities() && last_row + visible_begin <= 0 && first_row + visible_end >= kv_len;
}

Expr AttentionProbsKernel::makes_probabilities() const { return mode == probabilities; }

void AttentionProbsKernel::state_buffer_contract() {
    for (ImageParam param : {mask, bias, bias_16}) {
        param.dim(0).set_min(0).set_stride(Expr());
        param.dim(1).set_min(0);
        if (param.name() != mask.name()) param.dim(0).set_extent(width());
    }
    products.dim(0).set_min(0);
    products.dim(1).set_min(0);
    for (Func f : pipeline().outputs()) f.output_buffer().dim(0).set_bounds(0, width());
}

std::vector<OutputType> AttentionProbsKernel::output_types() const {
    std::vector<OutputType> list = AttentionProbsArguments::output_types();
    if (types.own == ElementType::f32) list.pop_back();
    return list;
}

Pipeline AttentionProbsKernel::pipeline() const {
    std::vector<Func> outputs = {scores, probs};
    if (types.own != ElementType::f32) outputs.push_back(probs_16);
    return Pipeline(outputs);
}

}  // namespace heed
