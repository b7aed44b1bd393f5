#include "generators/attention/probs.h"

namespace heed {

using namespace Halide;

namespace {

Expr minus_infinity() { return reinterpret<float>(Expr(INT32_MIN + 0x7f800000)); }

}  // namespace

AttentionProbsKernel::AttentionProbsKernel(ElementType dtype, int lanes)
    : AttentionProbsArguments({dtype, dtype}),
      over_blocks(0, (mask.dim(0).extent() + lanes - 1) / lanes, "over_blocks"), over_lanes(0, lanes, "over_lanes") {
    Expr width = mask.dim(0).extent();
    Expr element = bias(j, i), row = first_row + i;
    if (dtype != ElementType::f32) {
        element = select(bias_form == bias_of_dtype, to_float(dtype, bias_16(j, i)), element);
    }
    LogitChanges changes = logit_changes(*this);
    changes.bias = select(bias_form == no_bias, 0.f, element);
    changes.set_of_head(*this);
    changes.position = token_position(row, position_offset);
    changes.distance = token_distance(j, row, position_offset);
    const ChangedLogit logit = changed_logit(products(j, i), changes, LogitUnits::natural);
    const Expr in_range = j >= first_visible(row, visible_begin) && j < end_visible(row, visible_end, kv_len);
    const Expr visible = is_visible({in_range, mask_form != no_mask, mask(j, i), mask_form, changes.bias, Expr()});
    // Selected as bits: the default float mode may assume that no value is infinite.
    auto bits = [](const Expr &x) { return reinterpret<int32_t>(x); };
    Expr masked = select(visible, bits(logit.value), bits(minus_infinity()));
    Expr unmasked = select(j < kv_len, bits(select(mode == raw_scores, logit.scaled, logit.capped)), 0);
    scores(j, i) = reinterpret<float>(select(mode >= masked_scores, masked, unmasked));

    Expr key = over_blocks * lanes + u, last = width - 1;
    Expr each = scores(min(likely(key), last), i);
    lane_max(u, i) = lowest_logit();
    lane_max(u, i) = max(lane_max(u, i), select(is_negative_infinity(each), lowest_logit(), each));
    row_max(i) = lowest_logit();
    row_max(i) = max(row_max(i), lane_max(over_lanes, i));
    Expr score = scores(j, i);
    weights(j, i) = select(is_negative_infinity(score), 0.f, exp2_nonpositive((score - row_max(i)) * log2_e));
    lane_sum(u, i) = 0.f;
    lane_sum(u, i) += select(likely(key) < width, weights(min(likely(key), last), i), 0.f);
    row_sum(i) = 0.f;
    row_sum(i) += lane_sum(over_lanes, i);
    factor(i) = with_sink(row_max(i) * log16_e, row_sum(i), sink, LogitUnits::log16).factor();
    // A strict operation in the kernel keeps its predicated loads free of the assumption that what they load is finite,
    // on which the compiler would delete the tests for minus infinity.
    Expr result = reinterpret<float>(
        select(mode == probabilities, bits(strict_float(weights(j, i) * factor(i))), bits(scores(j, i))));
    probs(j, i) = result;
    probs_16(j, i) = dtype == ElementType::f32 ? cast<uint16_t>(0) : from_float(dtype, result);
    state_buffer_contract();
}

Expr AttentionProbsKernel::keeps_logits() const { return logit_changes(*this).cap_off() && alibi_slopes == 0.f; }

Expr AttentionProbsKernel::is_plain() const { return mask_form == no_mask && bias_form == no_bias && keeps_logits(); }

Expr AttentionProbsKernel::has_mask_only() const {
    return bias_form == no_bias && mask.dim(0).stride() == 1 && keeps_logits();
}

Expr AttentionProbsKernel::has_bias_only() const {
    return mask_form == no_mask && bias_form == bias_of_f32 && bias.dim(0).stride() == 1 && keeps_logits();
}

void AttentionProbsKernel::state_buffer_contract() {
    Expr width = mask.dim(0).extent();
    for (ImageParam param : {mask, bias, bias_16}) {
        param.dim(0).set_min(0).set_stride(Expr());
        param.dim(1).set_min(0);
        if (param.name() != mask.name()) param.dim(0).set_extent(width);
    }
    products.dim(0).set_min(0);
    products.dim(1).set_min(0);
    for (Func f : {scores, weights, probs}) f.output_buffer().dim(0).set_bounds(0, width);
    if (types.own != ElementType::f32) probs_16.output_buffer().dim(0).set_bounds(0, width);
}

std::vector<OutputType> AttentionProbsKernel::output_types() const {
    std::vector<OutputType> list = AttentionProbsArguments::output_types();
    if (types.own == ElementType::f32) list.pop_back();
    return list;
}

Pipeline AttentionProbsKernel::pipeline() const {
    std::vector<Func> outputs = {scores, row_max, row_sum, weights, probs};
    if (types.own != ElementType::f32) outputs.push_back(probs_16);
    return Pipeline(outputs);
}

}  // namespace heed
