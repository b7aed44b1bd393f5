#include "generators/ops/rope.h"

namespace heed {

using namespace Halide;

RopeKernel::RopeKernel(ElementType type) : RopeArguments({type}) {
    Expr row = clamp(positions(token) + position_step * token, 0, cos.dim(1).extent() - 1);
    Expr a = to_float(type, x(n, 0, head, token)), b = to_float(type, x(n, 1, head, token));
    Expr c = cos(n, row), s = sin(n, row) * direction;
    rotated(n, part, head, token) = mux(part, {a * c - b * s, b * c + a * s});
    out(n, part, head, token) = from_float(type, rotated(n, part, head, token));

    OutputImageParam buffer = out.output_buffer();
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

Expr RopeKernel::has_strides(const Expr &of_n, const Expr &of_part) const {
    OutputImageParam buffer = out.output_buffer();
    Expr same_n = x.dim(0).stride() == of_n && buffer.dim(0).stride() == of_n;
    return of_part.defined() ? same_n && x.dim(1).stride() == of_part && buffer.dim(1).stride() == of_part : same_n;
}

}  // namespace heed
