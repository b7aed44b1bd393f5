#include "generators/ops/backward_plain.h"

#include <limits>

#include "generators/attention/logits.h"
#include "generators/common/ceil_div.h"
#include "generators/lowering/carried.h"

namespace heed {

using namespace Halide;

namespace {

Expr word_of(const Expr &x) { return reinterpret<uint32_t>(x); }

// Element n of a Func of one or several.
Expr element_of(const Func &f, const std::vector<Expr> &at, int n) { return f.outputs() == 1 ? Expr(f(at)) : f(at)[n]; }

}  // namespace

BackwardPlainDevice::BackwardPlainDevice(ElementType type, BackwardSide side, const ProductTile &tile)
    : BackwardBlocks(type, {tile.rows, tile.width * tile.chunks}), side(side), tile(tile),
      products({TileProduct(tile, head_dim, 1), TileProduct(tile, head_dim_v, 1)}),
      over(0, tile.width, 0, tile.columns / tile.width, "over"),
      steps(0, ceil_div(is_of_keys() ? max_q_len : max_kv_len, tile.columns) * (is_of_keys() ? group() : Expr(1)),
            "steps"),
      over_pairs(0, 2, 0, shape.columns / 8, "over_pairs"),
      all(0, shape.columns, 0, shape.rows, 0, num_blocks(side), "all") {
    define_met();
    define_fields(fields_of, sequence);
    fields = &fields_of;
    define_rows();
    define_products();
    define_stats();
    define_terms();
    define_sums();
    define_doubts();
    std::vector<Expr> of_row;
    for (int n = 0; n < num_sums(); n++) {
        const Expr sum = element_of(sums, {all.x, all.y, all.z}, n);
        of_row.push_back(once(sum, doubts(all.x % 8 / 2, all.y, all.z)));
    }
    add(stored(side, of_row, all.x, all.y, all.z));
}

void BackwardPlainDevice::define_met() {
    const Block at = block_of(side, down);
    const Range of_first = range_of(side, at, at.first_row),
                of_last = range_of(side, at, min(at.first_row + tile.rows, at.num_rows) - 1);
    const Expr begin = of_first.begin / tile.columns * tile.columns;
    const Expr count = ceil_div(max(of_last.end - begin, 0), tile.columns) * (is_of_keys() ? group() : Expr(1));
    met(down) = Tuple(begin, select(at.first_row < at.num_rows, count, 0), of_last.begin, of_first.end);
}

Expr BackwardPlainDevice::number_of_rows() const { return is_of_keys() ? across / group() : Expr(across); }

Expr BackwardPlainDevice::first_of_step() const { return met(down)[0] + number_of_rows() * tile.columns; }

// The heads' addresses go up by head_bytes from step to step and back after the last one: two products, of numbers that
// the host computes.
Expr BackwardPlainDevice::at_step(const Expr &of_first, const Expr &head_bytes, const Expr &row_bytes) const {
    const Expr of_rows = row_bytes * Expr(static_cast<uint64_t>(tile.columns));
    if (!is_of_keys()) return after(of_first, across, of_rows);
    return after(after(of_first, across, head_bytes), number_of_rows(), of_rows - cast<uint64_t>(group()) * head_bytes);
}

void BackwardPlainDevice::define_rows() {
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

void BackwardPlainDevice::define_products() {
    const Block at = block_of(side, down);
    for (int n = 0; n < 2; n++) {
        TileProduct &product = products[static_cast<size_t>(n)];
        const Expr x = x_rows(product.row, down)[n], y = y_rows(product.column, across, down)[n];
        TileRows of_x = {type, {down}, x, is_given(x)}, of_y = {type, {across, down}, y};
        of_x.whole = rows(is_of_keys(), n, at.sequence).in_chunks();
        of_y.whole = rows(!is_of_keys(), n, at.sequence).in_chunks();
        of_y.line = first_of_step() + product.column;
        of_y.lines = at.num_other;
        product.define_product(of_x, of_y, {across, down});
    }
}

void BackwardPlainDevice::define_stats() {
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
Expr BackwardPlainDevice::unit() const {
    const float least = std::numeric_limits<float>::min();
    const Expr factor = scale * log2_e;
    return select(abs(factor) < least, least, factor);
}

// Its weight is 0.
Expr BackwardPlainDevice::hidden_score() const {
    const Expr bits = select(unit() < 0.f, Expr(negative_infinity_bits & 0x7fffffff), Expr(negative_infinity_bits));
    return reinterpret<float>(bits);
}

void BackwardPlainDevice::define_terms() {
    const Block at = block_of(side, down);
    const Expr first = first_of_step();
    const std::vector<Var> here = {column, row, across, down};
    const std::vector<Expr> own(here.begin(), here.end());
    const Expr score = products[0].sum(own), weight_dot = products[1].sum(own);
    const Expr hides_none = first >= met(down)[2] && first + tile.columns <= met(down)[3];
    const Expr in_range = cast<uint32_t>(first + column - x_range(row, down)[0]) < x_range(row, down)[1];
    const Expr word = select(same_for_block(hides_none) || in_range, word_of(score), word_of(hidden_score()));
    seen(here) = reinterpret<float>(word);

    const auto stat = [&](int which) -> Expr {
        return is_of_keys() ? stats(column % 2 * 2 + which, column / 2, across, down) : stats(which, row, down);
    };
    // A product with -1 is no instruction, where a difference from 0 is one.
    const Expr weight = exp2_on_device(fused_on_device(seen(own), unit(), stat(0) * -1.f));
    const Expr is_hidden = in_repetition(across) && word_of(seen(own)) == word_of(hidden_score());
    const Expr of_both[] = {weight * (weight_dot - stat(1)), weight};
    std::vector<Expr> found;
    for (int n = 0; n < num_sums(); n++) {
        // Whatever it multiplies, 0 adds nothing.
        const Expr is_nothing = is_hidden || (in_repetition(across) && is_zero(of_both[n]));
        found.push_back(reinterpret<float>(select(is_nothing, Expr(left_out_bits), word_of(of_both[n]))));
    }
    terms(here) = Tuple(found);
}

void BackwardPlainDevice::define_sums() {
    std::vector<Expr> zeros, found;
    for (int n = 0; n < num_sums(); n++) {
        step_sums.emplace_back("step_sum");
        Func &sum = step_sums.back();
        const std::vector<Expr> own = {d, row, across, down};
        sum(d, row, across, down) = 0.f;
        const Expr y_in_step = over.y * tile.width + over.x,
                   term = element_of(terms, {y_in_step, row, across, down}, n);
        const Expr y =
            products[static_cast<size_t>(n)].w_tile(d % tile.width, d / tile.width, y_in_step, 0, across, down);
        sum(d, row, across, down) = select(in_repetition(across) && word_of(term) == Expr(left_out_bits), sum(own),
                                           sum(own) + rounded_on_device(type, term) * to_float(type, y));
        zeros.emplace_back(0.f);
    }
    steps.where(steps < met(down)[1]);
    sums(d, row, down) = Tuple(zeros);
    for (int n = 0; n < num_sums(); n++) {
        const Expr of_step = step_sums[static_cast<size_t>(n)](d, row, steps, down);
        found.push_back(element_of(sums, {d, row, down}, n) + of_step);
    }
    sums(d, row, down) = Tuple(found);
}

// Numbers that are none, of which hidden rows may be the reason: a term of 0 does not hide them.
void BackwardPlainDevice::define_doubts() {
    const Block at = block_of(side, down);
    doubts(u, row, down) = 0;
    Expr found = doubts(u, row, down);
    for (int n = 0; n < num_sums(); n++) {
        const Expr sum = element_of(sums, {over_pairs.y * 8 + u * 2 + over_pairs.x, row, down}, n);
        const Expr is_nan = (word_of(sum) & Expr(0x7fffffffu)) > Expr(0x7f800000u);
        found = found | cast<int32_t>(is_nan && at.first_row + row < at.num_rows);
    }
    doubts(u, row, down) = found;
}

}  // namespace heed
