#include "generators/attention/probs.h"

namespace heed {

using namespace Halide;

namespace {

Expr minus_infinity() { return reinterpret<float>(Expr(INT32_MIN + 0x7f800000)); }

}  // namespace

AttentionProbsKernel::AttentionProbsKernel(ElementType dtype, ElementType kv_dtype)
    : AttentionProbsArguments({dtype, kv_dtype}), over_d(0, q.dim(0).extent(), "over_d"),
      over_keys(0, kv_len, "over_keys") {
    Expr pos = clamp(j, 0, max(kv_len, 1) - 1);
    Func pages("pages");
    Var page_of_sequence, sequence;
    pages(page_of_sequence, sequence) = page_table(page_of_sequence);
    const PageTable table = {pages, page_table.dim(0).extent(), page_size_of(page_size), k.dim(2).extent()};
    const KeySlot paged = table.slot(pos, 0);
    Expr slot = unsafe_promise_clamped(select(page_size > 0, paged.slot, first_key + pos), 0, k.dim(1).extent() - 1);
    Expr page = unsafe_promise_clamped(select(page_size > 0, paged.page, kv_batch), 0, k.dim(2).extent() - 1);
    dot(j) += to_float(dtype, q(over_d)) * to_float(kv_dtype, k(over_d, slot, page));
    Expr stored = unsafe_promise_clamped(j, 0, mask.dim(0).extent() - 1);
    Expr element = bias(stored);
    if (dtype != ElementType::f32) {
        element = select(bias_form == bias_of_dtype, to_float(dtype, bias_16(stored)), element);
    }
    LogitChanges changes = logit_changes(*this);
    if (kv_dtype == ElementType::i8) changes.key_scale = k_scale(slot, page);
    changes.bias = select(bias_form == no_bias, 0.f, element);
    changes.slope = slope;
    changes.distance = token_distance(pos, row, position_offset);
    const ChangedLogit logit = changed_logit(dot(j), changes, LogitUnits::natural);
    const Expr visible =
        is_visible({j >= begin && j < end, mask_form != no_mask, mask(stored), mask_form, changes.bias, Expr()});
    // Selected as bits: the default float mode may assume that no value is infinite.
    auto bits = [](const Expr &x) { return reinterpret<int32_t>(x); };
    Expr masked = select(visible, bits(logit.value), bits(minus_infinity()));
    Expr unmasked = select(j < kv_len, bits(select(mode == raw_scores, logit.scaled, logit.capped)), 0);
    scores(j) = reinterpret<float>(select(mode >= masked_scores, masked, unmasked));

    Expr each = scores(over_keys);
    row_max() = lowest_logit();
    row_max() = max(row_max(), select(is_negative_infinity(each), lowest_logit(), each));
    auto weight = [&](const Expr &x) {
        return select(is_negative_infinity(x), 0.f, exp2_nonpositive((x - row_max()) * log2_e));
    };
    row_sum() = 0.f;
    row_sum() += weight(each);
    Expr factor = with_sink(row_max() * log2_e, row_sum(), sink).factor();
    // A strict operation in the kernel keeps its predicated loads free of the assumption that what they load is finite,
    // on which the compiler would delete the tests for minus infinity.
    probs(j) = reinterpret<float>(
        select(mode == probabilities, bits(strict_float(weight(scores(j)) * factor)), bits(scores(j))));
    probs_16(j) = dtype == ElementType::f32 ? cast<uint16_t>(0) : from_float(dtype, probs(j));
    state_buffer_contract();
}

void AttentionProbsKernel::state_buffer_contract() {
    Expr width = mask.dim(0).extent();
    for (ImageParam param : {mask, bias, bias_16}) {
        param.dim(0).set_min(0).set_stride(Expr());
        if (param.name() != mask.name()) param.dim(0).set_extent(width);
    }
    for (ImageParam param : {q, k, k_scale, page_table}) {
        for (int i = 0; i < param.dimensions(); i++) param.dim(i).set_min(0);
    }
    k_scale.dim(0).set_stride(Expr());
    k.dim(0).set_extent(q.dim(0).extent());
    for (int i = 0; i < 2; i++) k_scale.dim(i).set_extent(k.dim(i + 1).extent());
    scores.output_buffer().dim(0).set_bounds(0, width);
    probs.output_buffer().dim(0).set_bounds(0, width);
    if (types.own != ElementType::f32) probs_16.output_buffer().dim(0).set_bounds(0, width);
}

std::vector<OutputType> AttentionProbsKernel::output_types() const {
    std::vector<OutputType> list = AttentionProbsArguments::output_types();
    if (types.own == ElementType::f32) list.pop_back();
    return list;
}

Pipeline AttentionProbsKernel::pipeline() const {
    std::vector<Func> outputs = {scores, row_max, row_sum, probs};
    if (types.own != ElementType::f32) outputs.push_back(probs_16);
    return Pipeline(outputs);
}

}  // namespace heed
