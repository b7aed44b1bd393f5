#pragma once
// RoPE on a block of rows: pairs (a, b) become (a cos - b sin, b cos + a sin), with sin times `direction`: 1, or -1 to
// rotate back.
//
// A row of rotary_dim elements is seen as (n, part): pair n, part 0 = a, part 1 = b. Half-split pairs have strides
// (1, rotary_dim / 2), interleaved ones (2, 1). out may be x itself: each pair is read before it is written.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operation_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(RopeArguments, HEED_ROPE)

struct RopeKernel : RopeArguments {
    Halide::Var n{"n"}, part{"part"}, head{"head"}, token{"token"};
    Halide::Func rotated{"rotated"}, out{"out"};

    explicit RopeKernel(ElementType type);

    // The two kinds of pairs, by the strides of x and out.
    Halide::Expr is_half_split() const { return has_strides(1, Halide::Expr()); }
    Halide::Expr is_interleaved() const { return has_strides(2, 1); }

    Halide::Pipeline pipeline() const { return Halide::Pipeline(out); }

private:
    Halide::Expr has_strides(const Halide::Expr &of_n, const Halide::Expr &of_part) const;
};

}  // namespace heed
