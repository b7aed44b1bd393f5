#pragma once
// Rows of a dropout mask as bytes: 1 = kept.

#include "generators/attention/dropout.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(DropoutMaskArguments, HEED_DROPOUT_MASK)

struct DropoutMaskKernel : DropoutMaskArguments {
    Halide::Var j{"j"}, i{"i"}, k{"k"}, counter{"counter"};
    Halide::Func words{"words"};  // (counter, i): the four words of the counter-th counter of row i
    Halide::Func kept{"kept"};    // (k, i), k from the row's first counter on
    Halide::Func keep{"keep"};    // (j, i)

    DropoutMaskKernel() {
        using Halide::cast, Halide::Expr, Halide::Tuple;
        Expr row_first = first + cast<uint64_t>(i) * row_length;
        const std::array<Expr, 4> four =
            philox_words(DropoutStream::of(seed, offset), (row_first >> 2) + cast<uint64_t>(counter));
        words(counter, i) = Tuple(four[0], four[1], four[2], four[3]);
        Tuple at = words(k / 4, i);
        kept(k, i) = cast<uint8_t>(dropout_keeps(mux(k % 4, {at[0], at[1], at[2], at[3]}), threshold));
        keep(j, i) = kept(j + clamp(cast<int32_t>(row_first & 3), 0, 3), i);
        keep.output_buffer().dim(0).set_min(0);
        keep.output_buffer().dim(1).set_min(0);
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline(keep); }
};

}  // namespace heed
