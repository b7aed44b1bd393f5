#include "generators/ops/merge_states.h"

#include "generators/attention/logits.h"

namespace heed {

using namespace Halide;

namespace {

constexpr int32_t one_bits = 0x3f800000;

Expr is_nan_value(const Expr &x) { return (bits(x) & 0x7fffffff) > infinity_bits; }

// A logit that takes part in a maximum: no key counts as the lowest finite one.
Expr logit_or_lowest(const Expr &x) { return select(is_negative_infinity(x), lowest_logit(), x); }

// exp(x - max), exactly 1 for the maximum itself and 0 without keys.
Expr weight_of(const Expr &x, const Expr &max) {
    return select(is_negative_infinity(x), 0.f, exp2_nonpositive((x - max) * log2_e));
}

}  // namespace

MergeStatesKernel::MergeStatesKernel(ElementType type)
    : MergeStatesArguments({type}), over_states(0, lse.dim(1).extent(), "over_states") {
    RDom &n = over_states;
    row_max(row) = logit_or_lowest(sink(row));
    row_max(row) = max(row_max(row), logit_or_lowest(lse(row, n)));
    row_sum(row) = weight_of(sink(row), row_max(row));
    row_sum(row) += weight_of(lse(row, n), row_max(row));
    weights(row, state) = weight_of(lse(row, state), row_max(row)) / row_sum(row);
    num_keyed(row) = 0;
    num_keyed(row) += select(is_negative_infinity(lse(row, n)), 0, 1);

    // Minus zero is the sum of nothing: added to x it leaves every x as it is, zeros of both signs too, where the
    // addition is a strict one. A strict operation in the kernel also keeps its predicated loads free of the assumption
    // that what they load is finite, on which the compiler would delete the tests for minus infinity.
    sum(d, row) = -0.f;
    Expr term = weights(row, n) * to_float(type, x(d, row, n));
    sum(d, row) = select(is_negative_infinity(lse(row, n)), sum(d, row), strict_float(sum(d, row) + term));
    Expr total = row_sum(row);
    Expr value = select(is_nan_value(total), bits(total), num_keyed(row) == 0, 0, bits(sum(d, row)));
    out(d, row) = from_float(type, reinterpret<float>(value));

    merged_lse(row) =
        reinterpret<float>(select(is_nan_value(total), bits(total), bits(total) == 0, negative_infinity_bits,
                                  bits(total) == one_bits, bits(row_max(row)), bits(row_max(row) + log(total))));
    state_buffer_contract();
}

void MergeStatesKernel::state_buffer_contract() {
    OutputImageParam out_buffer = out.output_buffer();
    Expr num_rows = lse.dim(0).extent(), num_states = lse.dim(1).extent();
    for (int i = 0; i < 2; i++) {
        lse.dim(i).set_min(0);
        out_buffer.dim(i).set_min(0);
    }
    x.dim(0).set_bounds(0, out_buffer.dim(0).extent());
    x.dim(1).set_bounds(0, num_rows);
    x.dim(2).set_bounds(0, num_states);
    out_buffer.dim(1).set_extent(num_rows);
    weights.output_buffer().dim(0).set_bounds(0, num_rows);
    weights.output_buffer().dim(1).set_bounds(0, num_states);
    sink.dim(0).set_bounds(0, num_rows);
    for (Func f : {row_max, row_sum, merged_lse}) f.output_buffer().dim(0).set_bounds(0, num_rows);
}

}  // namespace heed
