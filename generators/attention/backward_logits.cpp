#include "generators/attention/backward_logits.h"

namespace heed {

using namespace Halide;

Expr weight_of(const Expr &x) {
    Expr positive = reinterpret<uint32_t>(x) - Expr(1u) < Expr(0x7f800000u);
    return exp2_nonpositive(select(positive, 0.f, x) * log2_e);
}

Expr sees_keys(const Expr &lse) { return bits(lse) != bits(Expr(backward_no_key)); }

WeightGradients weight_gradients(const Expr &weight, const Expr &weight_dot, const Expr &delta, const Expr &factor,
                                 const Expr &dropped) {
    const Expr of_weight = select(dropped, 0.f, weight_dot * factor);
    return {select(dropped, 0.f, weight * factor), weight * (of_weight - delta)};
}

ScoreBuffers BackwardLogits::score_buffers() const {
    const ImageParam given[] = {score_buffer_0, score_buffer_1, score_buffer_2, score_buffer_3};
    std::vector<ScoreBuffers::Buffer> buffers;
    for (size_t n = 0; n < score_mod.buffers.size(); n++) {
        ImageParam words = given[n];
        words.dim(0).set_min(0);
        buffers.push_back(
            {[words](const Expr &index) { return words(index); }, words.dim(0).extent(), score_mod.buffers[n]});
    }
    return ScoreBuffers(buffers);
}

BackwardLogits::Gradients BackwardLogits::gradients(const Expr &score, const Expr &grad_of_weight) {
    const std::vector<Expr> here(at.begin(), at.end());
    Expr plain = form == backward_plain, unchanged = form < backward_scored, key = first_key + j, row = first_query + i;
    LogitChanges changes = logit_changes(*this);
    changes.bias = select(bias_form != no_bias, bias(here), 0.f);
    changes.set_of_head(*this);
    changes.position = token_position(row, position_offset);
    changes.distance = token_distance(key, row, position_offset);
    const ScorePlace place = {sequence, head, row, key, row + position_offset};
    const ScoreBuffers buffers = score_buffers();
    const ChangedLogit before_user = changed_logit(score, changes, LogitUnits::natural);
    ChangedLogit logit = before_user;
    if (score_mod.logit) logit.value = score_mod.logit(before_user.value, place, buffers);
    Expr in_range = key >= first_visible(row, visible_begin) && key < end_visible(row, visible_end, kv_len);
    Expr of_user;
    // A row after the last may belong to what no row of the call does, whose keys may hold NaN, and may get NaN.
    if (score_mod.visible || score_mod.logit) of_user = sees_keys(lse(i));
    if (score_mod.visible) of_user = of_user && score_mod.visible(place, buffers);
    Expr allowed = is_visible({Expr(), mask_form != no_mask, mask(here), mask_form, changes.bias, of_user});
    Expr seen = plain || (in_range && (unchanged || allowed));
    weights(at) = select(seen, weight_of(select(unchanged, logit.scaled, logit.value) - lse(i)), 0.f);
    Expr weight = weights(here);

    Expr element = first_element + cast<uint64_t>(i) * row_elements + cast<uint64_t>(j);
    const DropoutStream stream = DropoutStream::of(dropout_seed, dropout_offset);
    dropout(at) = select(is_kept(stream, dropout_threshold, element), dropout_scale, 0.f);
    Expr kept = select(form != backward_dropped, 1.f, dropout(here));
    Expr dropped = form == backward_dropped && is_zero(kept);
    const WeightGradients found = weight_gradients(weight, grad_of_weight, delta(i), kept, dropped);
    Expr value_grad = found.logit;
    if (score_mod.logit) value_grad *= score_mod.logit_derivative(before_user.value, place, buffers);
    Expr logit_grad = select(seen, value_grad, 0.f);
    Expr score_grad = scaled_gradient(logit_grad, logit, changes, unchanged || !seen);  // a hidden logit may be NaN
    return {found.weight, score_grad, logit_grad};
}

}  // namespace heed
