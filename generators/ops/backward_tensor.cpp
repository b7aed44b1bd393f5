#include "generators/ops/backward_tensor.h"

#include <limits>

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/lowering/carried.h"
#include "generators/ops/pair_stores.h"
#include "generators/ops/shared_counters.h"

namespace heed {

using namespace Halide;

namespace {

Expr word_of(const Expr &x) { return reinterpret<uint32_t>(x); }

// A product with -1 is no instruction, where a difference from 0 is one.
Expr minus(const Expr &x) { return x * -1.f; }

}  // namespace

BackwardTensorDevice::BackwardTensorDevice(ElementType type, BackwardSide side, bool is_plain, const ProductTile &tile,
                                           int parts, const ScoreMod &score_mod)
    : BackwardBlocks(type, {tile.rows, tile.width * tile.chunks}, score_mod), side(side), is_plain(is_plain),
      tile(tile), num_parts(parts), columns(shape.columns / parts),
      products({TileProduct(tile, head_dim, 1), TileProduct(tile, head_dim_v, 1)}),
      over(0, tile.width, 0, tile.columns / tile.width, "over"),
      steps(0, ceil_div(is_of_keys() ? max_q_len : max_kv_len, tile.columns) * (is_of_keys() ? group() : Expr(1)),
            "steps"),
      over_columns(0, 2, 0, select(shares_counters(max_kv_len), 0, tile.columns / 8), "over_columns"),
      over_counters(0, tile.columns / 16, "over_counters"), over_pairs(0, 2, 0, columns / 8, "over_pairs"),
      all(0, columns, 0, shape.rows, 0, num_blocks(side), 0, parts, "all") {
    define_met();
    define_fields(fields_of, sequence);
    fields = &fields_of;
    define_rows();
    if (!is_plain) define_lines();
    define_products();
    define_stats();
    define_terms();
    define_sums();
    define_doubts();
    add_gradients();
}

void BackwardTensorDevice::add_gradients() {
    const Block at = block_of(side, down);
    const Expr x = at.first_row + row, first = at.first_column + part * columns + u * 2;
    std::vector<Expr> places;
    for (int n = 0; n < num_sums(); n++) {
        const Rows to = gradient_rows(side, n, at.sequence);
        places.push_back(to.row(at.sequence, at.head, x) + bytes_of(UInt(16), first));
        places.push_back(select(x < at.stored_rows, to.length - first, 0));
    }
    places.emplace_back(cast<int32_t>(x < at.num_rows));
    for (Expr &place : places) place = once(place, doubts(u, row, part, down));
    out_rows(u, row, part, down) = Tuple(places);

    const Expr lane = all.x % 8 / 2;
    const FuncRef place = out_rows(lane, all.y, all.w, all.z);
    Expr result;
    for (int n = 0; n < num_sums(); n++) {
        const Rows to = gradient_rows(side, n, block_of(side, all.z).sequence);
        // Rows after the last one met others all the same, as zeros.
        const auto value = [&](const Expr &column) {
            const Expr sum = once(value_of(sums, {column, all.y, all.w, all.z}, n), place[2 * num_sums()]);
            return select(place[2 * num_sums()] != 0, scaled_sum(n, sum), 0.f);
        };
        const auto address = [&](const Expr &column) { return place[2 * n] + bytes_of(UInt(16), column - lane * 2); };
        const Expr on = is_given(to.first) && all.x - lane * 2 < place[2 * n + 1];
        const Expr store = store_in_pairs(type, all.x, on, to.in_words(), value, address);
        result = result.defined() ? result + store : store;
    }
    add(result);
}

// A sum of scores is multiplied by the scale, a sum of weights by the factor of those that dropout keeps.
Expr BackwardTensorDevice::scaled_sum(int n, const Expr &sum) const {
    if (n == 0) return sum * scale;
    return is_plain ? sum : sum * select(drops(), dropout_scale, 1.f);
}

void BackwardTensorDevice::define_met() {
    const Block at = block_of(side, down);
    const Range of_first = range_of(side, at, at.first_row),
                of_last = range_of(side, at, min(at.first_row + tile.rows, at.num_rows) - 1);
    const Expr begin = of_first.begin / tile.columns * tile.columns;
    const Expr count = ceil_div(max(of_last.end - begin, 0), tile.columns) * (is_of_keys() ? group() : Expr(1));
    met(down) = Tuple(begin, select(at.first_row < at.num_rows, count, 0), of_last.begin, of_first.end);
}

Expr BackwardTensorDevice::number_of_rows() const { return is_of_keys() ? across / group() : Expr(across); }

Expr BackwardTensorDevice::first_of_step() const { return met(down)[0] + number_of_rows() * tile.columns; }

// The heads' addresses go up by head_bytes from step to step and back after the last one: two products, of numbers that
// the host computes.
Expr BackwardTensorDevice::at_step(const Expr &of_first, const Expr &head_bytes, const Expr &row_bytes) const {
    const Expr of_rows = row_bytes * Expr(static_cast<uint64_t>(tile.columns));
    if (!is_of_keys()) return after(of_first, across, of_rows);
    return after(after(of_first, across, head_bytes), number_of_rows(), of_rows - cast<uint64_t>(group()) * head_bytes);
}

void BackwardTensorDevice::define_rows() {
    const Block at = block_of(side, down);
    const Expr x = at.first_row + row;
    std::vector<Expr> of_x, of_y;
    for (int n = 0; n < 2; n++) {
        const Expr to_x = rows(is_of_keys(), n, at.sequence).row(at.sequence, at.head, x);
        of_x.push_back(select(x < at.num_rows, to_x, cast<uint64_t>(0)));
        const Rows other = rows(!is_of_keys(), n, at.sequence);
        const Expr of_first = other.row(at.sequence, other_head(side, at, 0), met(down)[0] + column);
        of_y.push_back(at_step(of_first, other.head, other.token));
    }
    x_rows(row, down) = Tuple(of_x);
    y_rows(column, across, down) = Tuple(of_y);
    const Range range = range_of(side, at, x);
    const Expr count = select(x < at.num_rows, max(range.end - range.begin, 0), 0);
    x_range(row, down) = Tuple(range.begin, cast<uint32_t>(count));
}

void BackwardTensorDevice::define_products() {
    const Block at = block_of(side, down);
    for (int n = 0; n < 2; n++) {
        TileProduct &product = products[static_cast<size_t>(n)];
        const Expr x = x_rows(product.row, down)[n], y = y_rows(product.column, across, down)[n];
        TileRows of_x = {type, {down}, x, is_given(x)}, of_y = {type, {across, down}, y};
        of_x.whole = rows(is_of_keys(), n, at.sequence).in_chunks();
        of_y.whole = rows(!is_of_keys(), n, at.sequence).in_chunks();
        of_y.line = first_of_step() + product.column;
        of_y.lines = at.num_other;
        product.define_product(of_x, of_y, {part, across, down});
    }
}

void BackwardTensorDevice::define_stats() {
    const Block at = block_of(side, down);
    if (is_of_keys()) {
        const Expr of_first = stat_of({at.sequence, other_head(side, at, 0), met(down)[0]});
        const Expr head = across - number_of_rows() * group();
        const Expr behind = head * stat_rows + number_of_rows() * tile.columns + pair * 2;
        const Expr two = after(of_first, behind, Expr(uint64_t{backward_stat_bytes}));
        stats(number, pair, across, down) = load_at(Float(32), two, number);
    } else {
        const Row query = {at.sequence, at.head, at.first_row + row};
        stats(number, row, down) = load_at_if(exists(query), Float(32), stat_of(query), number);
    }
}

// What exponents are made of: the powers are those of 2. A factor of 0 would make NaN of a hidden score.
Expr BackwardTensorDevice::unit() const {
    if (!is_plain) return log2_e;
    const float least = std::numeric_limits<float>::min();
    const Expr factor = scale * log2_e;
    return select(abs(factor) < least, least, factor);
}

// Its weight is 0.
Expr BackwardTensorDevice::hidden_score() const {
    const Expr bits = select(unit() < 0.f, Expr(negative_infinity_bits & 0x7fffffff), Expr(negative_infinity_bits));
    return reinterpret<float>(bits);
}

Expr BackwardTensorDevice::hidden_unless(const Expr &visible, const Expr &score) const {
    return reinterpret<float>(select(visible, word_of(score), word_of(hidden_score())));
}

Expr BackwardTensorDevice::stat(int which) const {
    return is_of_keys() ? stats(column % 2 * 2 + which, column / 2, across, down) : stats(which, row, down);
}

BackwardTensorDevice::Logit BackwardTensorDevice::logit(const Expr &of_column) const {
    Block at;
    at.sequence = place(down)[0];
    at.head = place(down)[1];
    const Expr x = place(down)[2] + row, y = first_of_step() + of_column;
    if (!is_of_keys()) return {{at.sequence, at.head, x}, y};
    return {{at.sequence, other_head(side, at, across - number_of_rows() * group()), y}, x};
}

// Of masks and biases [batch, head, row, key].
void BackwardTensorDevice::define_lines() {
    const Block at = block_of(side, down);
    place(down) = Tuple(at.sequence, at.head, at.first_row);
    const Expr x = min(at.first_row + row, at.num_rows - 1);
    const auto line = [&](const Expr &first, const Expr &batch, const Expr &head, const Expr &of_row, const Expr &key) {
        const Expr of_sequence = after(first, at.sequence, batch);
        return is_of_keys() ? after(of_sequence, x, key) : after(after(of_sequence, at.head, head), x, of_row);
    };
    x_lines(row, down) = Tuple(line(mask, mask_batch, mask_head, mask_row, mask_key),
                               line(bias, bias_batch, bias_head, bias_row, bias_key));
}

// The part of the address that another row gives is added up first, for it is the same for all rows of a thread.
Expr BackwardTensorDevice::element(bool of_bias, const Type &of) const {
    const Expr line = x_lines(row, down)[of_bias ? 1 : 0], head = logit(column).query.head;
    const Expr y = cast<uint32_t>(min(first_of_step() + column, block_of(side, down).num_other - 1));
    if (!is_of_keys()) return load_at(of, after(line, y, of_bias ? bias_key : mask_key), 0);
    const Expr of_head = after(cast<uint64_t>(0), head, of_bias ? bias_head : mask_head);
    return load_at(of, line + after(of_head, y, of_bias ? bias_row : mask_row), 0);
}

void BackwardTensorDevice::add_stage(const char *name, const std::vector<Expr> &values) {
    stages.emplace_back(name);
    stages.back()(column, row, part, across, down) = Tuple(values);
}

// What a score function makes of a logit. gradient: made that before it. What the bias hides stays hidden, and the
// function does not see it.
Expr BackwardTensorDevice::by_user(const Expr &logit, Expr *gradient) {
    const Logit at = this->logit(column);
    const Expr shown = bias_form == no_bias || !is_negative_infinity(logit);
    const Expr given = reinterpret<float>(select(shown, word_of(logit), Expr(0u)));
    const Expr offset = field(sequence_position_offset, block_of(side, down).sequence);
    const OfUser user = of_user(given, logit_place(at.query, at.key, offset), down);
    if (!score_mod.logit) {
        add_stage("by_user", {hidden_unless(user.visible, logit)});
        return stages.back()(column, row, part, across, down);
    }
    const Expr visible = score_mod.visible ? shown && user.visible : shown;
    add_stage("by_user", {hidden_unless(visible, user.value), *gradient * user.slope});
    *gradient = stages.back()(column, row, part, across, down)[1];
    return stages.back()(column, row, part, across, down)[0];
}

// What makes logits of products. gradient: of weights; made that of products but for the weight and the scale.
Expr BackwardTensorDevice::changed_in_stages(const Expr &product, const Expr &weight_dot, Expr *gradient) {
    const std::vector<Var> here = {column, row, part, across, down};
    const std::vector<Expr> own(here.begin(), here.end());
    const Logit at = logit(column);
    define_kept();
    const Expr minus_delta = minus(stat(1));
    const Expr after_dropout =
        select(keeps_weight(), fused_on_device(weight_dot, dropout_scale, minus_delta), minus_delta);
    graded(here) = select(same_for_block(drops()), after_dropout, weight_dot + minus_delta);
    stages.push_back(graded);

    LogitChanges changes = changes_of(at.query);
    const Expr scaled = product * changes.scale, tangent = tanh_on_device(product * (changes.scale * (1.f / softcap)));
    const Expr is_capped = same_for_block(changes.cap_on()), slope = graded(own);
    add_stage("capped", {select(is_capped, softcap * tangent, scaled),
                         select(is_capped, fused_on_device(slope * tangent, -tangent, slope), slope)});
    *gradient = stages.back()(own)[1];
    Expr logit = stages.back()(own)[0];
    const auto changed = [&](const char *name, const Expr &is_used, const Expr &value) {
        add_stage(name, {select(same_for_block(is_used), value, logit)});
        logit = stages.back()(own);
    };
    const Expr offset = field(sequence_position_offset, block_of(side, down).sequence);
    const Expr distance = token_distance(at.key, at.query.i, offset);
    changed("of_place", is_given(alibi_slopes), logit + changes.bias_of_place(changes.alibi_slopes, distance));
    const auto add_bias = [&](const char *name, BiasForm form, const Expr &of) {
        changed(name, bias_form == form, hidden_unless(!is_negative_infinity(of), logit + of));
    };
    add_bias("with_bias", bias_of_f32, element(true, Float(32)));
    add_bias("with_bias_16", bias_of_dtype, to_float(type, element(true, stored_type(type))));
    if (asks_user()) logit = by_user(logit, gradient);
    changed("allowed", mask_form != no_mask, hidden_unless(mask_allows(element(false, UInt(8)), mask_form), logit));
    return logit;
}

void BackwardTensorDevice::define_terms() {
    const Block at = block_of(side, down);
    const Expr first = first_of_step();
    const std::vector<Var> here = {column, row, part, across, down};
    const std::vector<Expr> own(here.begin(), here.end());
    Expr score = products[0].sum(own), gradient = products[1].sum(own);
    gradient = is_plain ? gradient - stat(1) : gradient;
    if (!is_plain) score = changed_in_stages(score, gradient, &gradient);
    const Expr hides_none = first >= met(down)[2] && first + tile.columns <= met(down)[3];
    const Expr in_range = cast<uint32_t>(first + column - x_range(row, down)[0]) < x_range(row, down)[1];
    seen(here) = hidden_unless(same_for_block(hides_none) || in_range, score);

    const Expr weight = exp2_on_device(fused_on_device(seen(own), unit(), minus(stat(0))));
    const Expr is_hidden = in_repetition(across) && word_of(seen(own)) == word_of(hidden_score());
    Expr with_dropout = weight;
    if (!is_plain && is_of_keys()) {
        with_dropout = select(same_for_block(drops()), select(keeps_weight(), weight, 0.f), weight);
    }
    const Expr of_both[] = {weight * gradient, with_dropout};
    std::vector<Expr> found;
    for (int n = 0; n < num_sums(); n++) {
        // Whatever it multiplies, 0 adds nothing.
        const Expr is_nothing = is_hidden || (in_repetition(across) && is_zero(of_both[n]));
        found.push_back(reinterpret<float>(select(is_nothing, Expr(left_out_bits), word_of(of_both[n]))));
    }
    terms(here) = Tuple(found);
}

void BackwardTensorDevice::define_sums() {
    std::vector<Expr> zeros, found;
    for (int n = 0; n < num_sums(); n++) {
        step_sums.emplace_back("step_sum");
        Func &sum = step_sums.back();
        const std::vector<Expr> own = {d, row, part, across, down};
        sum(d, row, part, across, down) = 0.f;
        const Expr y_in_step = over.y * tile.width + over.x,
                   term = value_of(terms, {y_in_step, row, part, across, down}, n);
        const Expr y = products[static_cast<size_t>(n)].w_tile(
            d % tile.width, part * (columns / tile.width) + d / tile.width, y_in_step, 0, across, down);
        sum(d, row, part, across, down) =
            select(in_repetition(across) && word_of(term) == Expr(left_out_bits), sum(own),
                   sum(own) + rounded_on_device(type, term) * to_float(type, y));
        zeros.emplace_back(0.f);
    }
    steps.where(steps < met(down)[1]);
    sums(d, row, part, down) = Tuple(zeros);
    for (int n = 0; n < num_sums(); n++) {
        const Expr of_step = step_sums[static_cast<size_t>(n)](d, row, part, steps, down);
        found.push_back(value_of(sums, {d, row, part, down}, n) + of_step);
    }
    sums(d, row, part, down) = Tuple(found);
}

// Numbers that are none, of which hidden rows may be the reason: a term of 0 does not hide them.
void BackwardTensorDevice::define_doubts() {
    doubts(u, row, part, down) = 0;
    Expr found = doubts(u, row, part, down);
    for (int n = 0; n < num_sums(); n++) {
        const Expr sum = value_of(sums, {over_pairs.y * 8 + u * 2 + over_pairs.x, row, part, down}, n);
        const Expr is_nan = (word_of(sum) & Expr(0x7fffffffu)) > Expr(0x7f800000u);
        found = found | cast<int32_t>(is_nan && is_given(x_rows(row, down)[0]));
    }
    doubts(u, row, part, down) = found;
}

}  // namespace heed
