#include "generators/ops/backward_bias.h"

#include "generators/common/ceil_div.h"

namespace heed {

using namespace Halide;

BackwardBiasDevice::BackwardBiasDevice(ElementType type, int threads, const ScoreMod &score_mod)
    : BackwardScores(type, score_mod), over_parts(0, threads, "over_parts"), type(type) {
    const Expr lines = num_lines(), keys = shared().key;
    const Expr whole = cast<int64_t>(lines) * cast<int64_t>(keys) > cast<int64_t>(logits_of_thread);

    of_block.over = RDom(0, keys, 0, ceil_div(lines, threads), "over_block");
    const Expr of_line = of_block.over.y * threads + part;
    of_block.over.where(of_line < lines);
    define_dots(of_block);
    of_block.sum(part, element) += gradient(of_block, of_block.over.x, of_line, element);
    total(element) += of_block.sum(over_parts, element);
    of_block.all = RDom(0, 1, 0, select(whole, num_elements(), 0), "all_of_blocks");
    add(stored(of_block.all.y, total(of_block.all.y)));

    of_thread.over = RDom(0, keys, 0, lines, "over_thread");
    define_dots(of_thread);
    of_thread.sum(element) += gradient(of_thread, of_thread.over.x, of_thread.over.y, element);
    of_thread.all = RDom(0, select(whole, 0, num_elements()), "all_of_threads");
    add(stored(of_thread.all, of_thread.sum(of_thread.all)));
}

// How many logits share an element along each axis.
BackwardBiasDevice::Axes BackwardBiasDevice::shared() const {
    const auto along = [](const Expr &extent, const Expr &logits) { return select(extent == logits, 1, logits); };
    return {along(dbias_keys, max_kv_len), along(dbias_rows, max_q_len), along(dbias_heads, num_heads),
            along(dbias_batch, batch)};
}

Expr BackwardBiasDevice::num_lines() const {
    const Axes all = shared();
    return all.row * all.head * all.sequence;
}

BackwardBiasDevice::Axes BackwardBiasDevice::place_of(const Expr &number) const {
    const Axes all = extents();
    const Expr row_number = number / all.key, head_number = row_number / all.row, sequence = head_number / all.head;
    return {number - row_number * all.key, row_number - head_number * all.row, head_number - sequence * all.head,
            sequence};
}

// Number `of_line` of an element's lines, and number `of_key` of a line's keys.
BackwardBiasDevice::Logit BackwardBiasDevice::logit(const Expr &of_key, const Expr &of_line,
                                                    const Expr &of_element) const {
    const Axes first = place_of(of_element), all = shared();
    const Expr of_head = of_line / all.row, of_sequence = of_head / all.head;
    return {{first.sequence + of_sequence, first.head + of_head - of_sequence * all.head,
             first.row + of_line - of_head * all.row},
            first.key + of_key};
}

// By the lengths and places alone.
Expr BackwardBiasDevice::is_seen(const Logit &at) const {
    const Expr s = at.row.sequence, kv_len = field(sequence_kv_len, s);
    return exists(at.row) && at.j >= first_visible(at.row.i, field(sequence_visible_begin, s)) &&
           at.j < end_visible(at.row.i, field(sequence_visible_end, s), kv_len);
}

void BackwardBiasDevice::define_dots(Sums &sums) const {
    const Logit at = logit(key, line, element);
    sums.seen(key, line, element) = is_seen(at);
    const Expr s = at.row.sequence, head = at.row.head, kv_head = kv_head_of(head);
    const auto query = [&](int n) { return query_rows(n, s).row(s, head, at.row.i); };
    const auto token = [&](int n) { return key_rows(n, s).row(s, kv_head, at.j); };
    sums.rows(key, line, element) = {query(0), token(0), query(1), token(1)};
    const auto define = [&](Func &dot, RDom &over, const char *name, const Expr &length, int x, int y) {
        over = RDom(0, length, name);
        over.where(sums.seen(key, line, element));
        const auto element_of = [&](int row) { return float_at(type, sums.rows(key, line, element)[row], over); };
        dot(key, line, element) = 0.f;
        dot(key, line, element) = fused_on_device(element_of(x), element_of(y), dot(key, line, element));
    };
    define(sums.dot, sums.over_d, "over_d", head_dim, 0, 1);
    define(sums.weight_dot, sums.over_d_of_v, "over_d_of_v", head_dim_v, 2, 3);
}

// What dropout multiplies the weight by.
Expr BackwardBiasDevice::kept(const Logit &at) const {
    return select(!drops(), 1.f, keeps(at.row, at.j), dropout_scale, 0.f);
}

// The gradient of the logit with the bias, before a score function.
Expr BackwardBiasDevice::gradient(const Sums &sums, const Expr &of_key, const Expr &of_line,
                                  const Expr &of_element) const {
    const Logit at = logit(of_key, of_line, of_element);
    const Expr stat = stat_of(at.row), seen = sums.seen(of_key, of_line, of_element);
    const auto of_row = [&](int which) { return load_at_if(seen, Float(32), stat, which); };
    Expr score = score_of(sums.dot(of_key, of_line, of_element), Expr(masked_scores), at.row, at.j);
    Expr hidden = !seen || is_negative_infinity(score);
    const OfUser user =
        of_user(score, logit_place(at.row, at.j, field(sequence_position_offset, at.row.sequence)), of_element);
    if (user.value.defined()) score = user.value;
    if (user.visible.defined()) hidden = hidden || !user.visible;
    const Expr factor = kept(at), weight = exp2_on_device(fused_on_device(score, log2_e, -of_row(0)));
    const Expr weight_dot = sums.weight_dot(of_key, of_line, of_element);
    const Expr of_logit = weight_gradients(weight, weight_dot, of_row(1), factor, is_zero(factor)).logit;
    return select(hidden, 0.f, user.slope.defined() ? of_logit * user.slope : of_logit);
}

Expr BackwardBiasDevice::stored(const Expr &of_element, const Expr &sum) const {
    const Axes at = place_of(of_element);
    const Expr row = after(after(after(dbias, at.sequence, bias_batch), at.head, bias_head), at.row, bias_row);
    const Expr to = after(row, at.key, bias_key);
    if (type == ElementType::f32) return store_at(to, 0, sum);
    const Expr as_f32 = bias_form == bias_of_f32;
    return store_at_if(as_f32, to, 0, sum) + store_at_if(!as_f32, to, 0, from_float(type, sum));
}

}  // namespace heed
