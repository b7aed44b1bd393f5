#pragma once
// Layer norm of rows: out = (x - mean) / sqrt(variance + epsilon) * weight + bias, the variance as the mean of squared
// differences, in float. Ba et al., arXiv 1607.06450.

#include "element_type.h"

namespace heed {

struct LayerNormKernel {
    ElementType type;
    Halide::ImageParam x;                                       // (d, row)
    Halide::ImageParam weight{Halide::Float(32), 1, "weight"};  // (d)
    Halide::ImageParam bias{Halide::Float(32), 1, "bias"};
    Halide::Param<float> epsilon{"epsilon"};

    Halide::Var d{"d"}, row{"row"}, u{"u"};
    Halide::RDom over_d;
    Halide::Func sum{"sum"}, squares{"squares"};  // (row)
    Halide::Func mean{"mean"}, factor{"factor"};  // (row)
    Halide::Func out{"out"};                      // (d, row); may be x itself

    explicit LayerNormKernel(ElementType type);

    std::vector<Halide::Argument> arguments() const { return {x, weight, bias, epsilon}; }
    Halide::Pipeline pipeline() const { return Halide::Pipeline({mean, factor, out}); }
};

}  // namespace heed
