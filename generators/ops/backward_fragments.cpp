// Gradients in fragments of tensor cores. What hides a score is of the block where the call changes no logits
// otherwise; then a weight is an exponential of one fused product.
#include <limits>

#include "generators/attention/logits.h"
#include "generators/ops/backward_sums.h"

namespace heed {

using namespace Halide;

namespace {

Expr word_of(const Expr &x) { return reinterpret<uint32_t>(x); }

// Element n of a Func of one or several.
Expr element_of(const Func &f, const std::vector<Expr> &at, int n) { return f.outputs() == 1 ? Expr(f(at)) : f(at)[n]; }

}  // namespace

// What exponents are made of: the powers are those of 2. A factor of 0 would make NaN of a hidden score.
Expr BackwardSumsDevice::unit() const {
    const float least = std::numeric_limits<float>::min();
    const Expr factor = scale * log2_e;
    return select(abs(factor) < least, least, factor);
}

// Its weight is 0.
Expr BackwardSumsDevice::hidden_score() const {
    const Expr bits = select(unit() < 0.f, Expr(negative_infinity_bits & 0x7fffffff), Expr(negative_infinity_bits));
    return reinterpret<float>(bits);
}

void BackwardSumsDevice::define_stats(Side &of) const {
    const Block at = block_of(of.side, down);
    const Step step = step_of(of, at);
    const Type type_of = Float(32);
    if (of.side == backward_keys) {
        const Expr first = stat_of({at.sequence, step.head, step.first});
        of.stats(number, pair, across, down) =
            load_at(type_of, after(first, pair, Expr(uint64_t{2 * backward_stat_bytes})), number);
    } else {
        const Row query = {at.sequence, at.head, at.first_row + row};
        of.stats(number, row, down) = load_at_if(exists(query), type_of, stat_of(query), number);
    }
    const Range range = range_of(of.side, at, at.first_row + row);
    const Expr count = select(at.first_row + row < at.num_rows, max(range.end - range.begin, 0), 0);
    of.x_range(row, down) = Tuple(range.begin, cast<uint32_t>(count));
}

void BackwardSumsDevice::define_terms_of_fragments(Side &of) const {
    const Block at = block_of(of.side, down);
    const Step step = step_of(of, at);
    const bool of_keys = of.side == backward_keys;
    const std::vector<Var> here = in_step({column, row});
    const std::vector<Expr> own(here.begin(), here.end());
    const Expr x = at.first_row + row, y = step.first + column;
    const Expr in_range = cast<uint32_t>(y - of.x_range(row, down)[0]) < of.x_range(row, down)[1];
    const Expr changes = adds_to_logits() || logit_changes(*this).cap_on() || dropout_threshold != cast<uint64_t>(0);
    const Expr end = step.first + tile.products.columns;
    const Expr hides_none = changes || (step.first >= of.met(down)[3] && end <= of.met(down)[4]);
    const Expr score = of.products[0].sum(own), weight_dot = of.products[1].sum(own);
    of.seen(here) =
        reinterpret<float>(select(same_for_block(hides_none) || in_range, word_of(score), word_of(hidden_score())));

    const auto stat = [&](int which) {
        return of_keys ? of.stats(column % 2 * 2 + which, column / 2, across, down) : of.stats(which, row, down);
    };
    const Expr lse = stat(0), delta = stat(1);
    const Row query = {at.sequence, of_keys ? step.head : at.head, of_keys ? y : x};
    const Gradients changed = gradients(of.weight, here, score, weight_dot, query, Query({lse, delta, Expr(), Expr()}),
                                        in_range, of_keys ? x : y);
    const Expr weight = exp2_on_device(fused_on_device(of.seen(own), unit(), -lse));
    const Expr is_hidden = in_repetition(across) && word_of(of.seen(own)) == word_of(hidden_score());
    const Expr plain[] = {select(is_hidden, 0.f, weight * (weight_dot - delta)), weight};
    const Expr general[] = {changed.score, changed.weight};
    std::vector<Expr> terms;
    for (int n = 0; n < (of_keys ? 2 : 1); n++) {
        const Expr term = select(same_for_block(changes), general[n], plain[n]);
        // Whatever it multiplies, 0 adds nothing.
        const Expr is_nothing = in_repetition(across) && is_zero(term);
        terms.push_back(reinterpret<float>(select(is_nothing, Expr(left_out_bits), word_of(term))));
    }
    of.terms(here) = Tuple(terms);
}

void BackwardSumsDevice::define_sums_of_fragments(Side &of) const {
    std::vector<Expr> zeros, sums;
    for (int n = 0; n < (of.side == backward_keys ? 2 : 1); n++) {
        of.step_sums.emplace_back("step_sum");
        Func &sum = of.step_sums.back();
        const std::vector<Var> here = in_step({d, row});
        const std::vector<Expr> own(here.begin(), here.end());
        sum(here) = 0.f;
        const Expr met = of.over.y * tile.chunk + of.over.x, term = element_of(of.terms, {met, row, across, down}, n);
        const Expr y = of.products[static_cast<size_t>(n)].w_tile(d % tile.chunk, d / tile.chunk, met, 0, across, down);
        sum(here) = select(in_repetition(across) && word_of(term) == Expr(left_out_bits), sum(own),
                           sum(own) + rounded_on_device(type, term) * to_float(type, y));
        zeros.emplace_back(0.f);
    }
    of.steps.where(of.steps < of.met(down)[2]);
    of.sums(d, row, down) = Tuple(zeros);
    for (int n = 0; n < static_cast<int>(of.step_sums.size()); n++) {
        sums.push_back(element_of(of.sums, {d, row, down}, n) +
                       of.step_sums[static_cast<size_t>(n)](d, row, of.steps, down));
    }
    of.sums(d, row, down) = Tuple(sums);
}

// Numbers that are none, of which hidden rows may be the reason: a term of 0 does not hide them.
void BackwardSumsDevice::define_doubts(Side &of) const {
    const Block at = block_of(of.side, down);
    of.doubts(u, row, down) = 0;
    Expr found = of.doubts(u, row, down);
    for (int n = 0; n < of.sums.outputs(); n++) {
        const Expr sum = element_of(of.sums, {of.over_pairs.y * 8 + u * 2 + of.over_pairs.x, row, down}, n);
        const Expr is_nan = (word_of(sum) & Expr(0x7fffffffu)) > Expr(0x7f800000u);
        found = found | cast<int32_t>(is_nan && at.first_row + row < at.num_rows);
    }
    of.doubts(u, row, down) = found;
}

}  // namespace heed
