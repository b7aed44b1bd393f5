#pragma once
// What a decode kernel of several splits leaves becomes out and lse.

#include "generators/attention/logits.h"
#include "generators/attention/merged_splits.h"
#include "generators/common/device_memory.h"
#include "generators/contract/cuda_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(MergeSplitsArguments, HEED_CUDA_MERGE_SPLITS)

struct MergeSplitsDevice : MergeSplitsArguments, MergedSplits, Results {
    Halide::Var d{"d"}, split{"split"}, row{"row"};
    Halide::Func row_sum{"row_sum"}, merged{"merged"};  // (row), (d, row)
    Halide::Func result{"result"};                      // (row): factor of the output; lse
    Halide::RDom all;                                   // d, row

    explicit MergeSplitsDevice(ElementType type) : MergeSplitsArguments({type}), all(0, head_dim, 0, rows, "all") {
        define({num_splits, [this](const Expr &n) { return max_of(n); }, exp2_on_device, maximum_on_device}, split,
               {row});
        const Expr n = over_splits, has_key = !is_zero(sum_of(n));  // without a key it has left no output
        MergedSplits::add(row_sum(row), sum_of(n));
        MergedSplits::add(merged(d, row), load_at_if(has_key, Halide::Float(32), state(n), d));
        const Expr has_sink = sink != Halide::cast<uint64_t>(0);
        const Expr logit = load_at_if(has_sink, Halide::Int(32), sink, place_of(row).head);
        const Expr of_sink = Halide::reinterpret<float>(select(has_sink, logit, negative_infinity_bits));
        const RowResult found = with_sink(split_max(row), row_sum(row), of_sink, LogitUnits::log2);
        result(row) = {found.factor(), found.lse};

        const Expr c = all.x, r = all.y;
        const Place at = place_of(r);
        const Expr out_row = after(after(after(out, at.sequence, out_batch), at.token, out_token), at.head, out_head),
                   lse_at = after(after(after(lse, at.sequence, lse_batch), at.token, lse_token), at.head, lse_head);
        Results::add(store_at(out_row, c, from_float(type, merged(c, r) * result(r)[0])) +
                     store_at_if(c == 0, lse_at, 0, result(r)[1]));
    }

private:
    using Expr = Halide::Expr;

    struct Place {
        Expr sequence, token, head;
    };
    Place place_of(const Expr &r) const {
        const Expr token = r / num_heads, sequence = token / tokens;
        return {sequence, token - sequence * tokens, r - token * num_heads};
    }

    // Strides of 64 bits, so that a loop over splits adds to an address.
    Expr state(const Expr &n) const {
        const Expr bytes = bytes_of(Halide::Float(32), state_floats);
        return after(after(states, row * num_splits, bytes), n, bytes);
    }
    Expr end_of_state(const Expr &n) const { return state(n) + bytes_of(Halide::Float(32), state_floats - 2); }
    Expr max_of(const Expr &n) const { return float_at(ElementType::f32, end_of_state(n), 0); }
    Expr sum_of(const Expr &n) const { return float_at(ElementType::f32, end_of_state(n), 1); }
};

}  // namespace heed
