#pragma once
// RoPE on a block of rows. out may be x itself: each pair is read before it is written.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"
#include "generators/ops/rotation.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(RopeArguments, HEED_ROPE)

struct RopeRows : RopeArguments {
    Halide::Var head{"head"}, token{"token"};

    explicit RopeRows(ElementType type) : RopeArguments({type}), type(type) {}

protected:
    const ElementType type;

    RotatedRows rotated_rows() const {
        using Halide::Expr;
        Expr row = clamp(positions(token) + position_step * token, 0, cos.dim(1).extent() - 1);
        return {{head, token},
                [this](const Expr &n, int part) { return to_float(type, x(n, part, head, token)); },
                [this, row](const Expr &n) { return cos(n, row); },
                [this, row](const Expr &n) { return sin(n, row); },
                direction,
                {}};
    }
};

struct RopeKernel : RopeRows, Rotation {
    using Expr = Halide::Expr;

    Halide::Func out{"out"};  // (n, part, head, token)

    explicit RopeKernel(ElementType type) : RopeRows(type), Rotation(rotated_rows()) {
        out(n, part, head, token) = from_float(type, rotated(n, part, head, token));

        Halide::OutputImageParam buffer = out.output_buffer();
        x.dim(0).set_stride(Expr());
        buffer.dim(0).set_stride(Expr());
        Expr num_pairs = buffer.dim(0).extent();
        cos.dim(0).set_bounds(0, num_pairs);
        sin.dim(0).set_bounds(0, num_pairs);
        cos.dim(1).set_min(0);
        sin.dim(1).set_bounds(0, cos.dim(1).extent());
        buffer.dim(1).set_bounds(0, 2);
        for (int i = 0; i < 4; i++) {
            x.dim(i).set_min(0).set_extent(buffer.dim(i).extent());
            buffer.dim(i).set_min(0);
        }
        positions.dim(0).set_stride(Expr()).set_bounds(0, buffer.dim(3).extent());
    }

    // The two kinds of pairs, by the strides of x and out.
    Expr is_half_split() const { return has_strides(1, Expr()); }
    Expr is_interleaved() const { return has_strides(2, 1); }

    Halide::Pipeline pipeline() const { return Halide::Pipeline(out); }

private:
    Expr has_strides(const Expr &of_n, const Expr &of_part) const {
        Halide::OutputImageParam buffer = out.output_buffer();
        Expr same_n = x.dim(0).stride() == of_n && buffer.dim(0).stride() == of_n;
        return of_part.defined() ? same_n && x.dim(1).stride() == of_part && buffer.dim(1).stride() == of_part : same_n;
    }
};

}  // namespace heed
