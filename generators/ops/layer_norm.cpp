#include "generators/ops/layer_norm.h"

namespace heed {

using namespace Halide;

LayerNormKernel::LayerNormKernel(ElementType type)
    : LayerNormArguments({type}), over_d(0, x.dim(0).extent(), "over_d") {
    Expr length = cast<float>(x.dim(0).extent());
    sum(row) += to_float(type, x(over_d, row));
    mean(row) = sum(row) / length;
    Expr difference = to_float(type, x(over_d, row)) - mean(row);
    squares(row) += difference * difference;
    factor(row) = 1.f / sqrt(squares(row) / length + epsilon);
    Expr normal = (to_float(type, x(d, row)) - mean(row)) * factor(row);
    out(d, row) = from_float(type, normal * weight(d) + bias(d));

    OutputImageParam buffer = out.output_buffer();
    for (int i = 0; i < 2; i++) {
        x.dim(i).set_min(0).set_extent(buffer.dim(i).extent());
        buffer.dim(i).set_min(0);
    }
    weight.dim(0).set_bounds(0, buffer.dim(0).extent());
    bias.dim(0).set_bounds(0, buffer.dim(0).extent());
    for (Func f : {mean, factor}) f.output_buffer().dim(0).set_bounds(0, buffer.dim(1).extent());
}

}  // namespace heed
