#pragma once
// Layer norm of rows: out = (x - mean) / sqrt(variance + epsilon) * weight + bias, the variance as the mean of squared
// differences, in float. Ba et al., arXiv 1607.06450.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operation_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(LayerNormArguments, HEED_LAYER_NORM)

struct LayerNormKernel : LayerNormArguments {
    Halide::Var d{"d"}, row{"row"}, u{"u"};
    Halide::RDom over_d;
    Halide::Func sum{"sum"}, squares{"squares"};  // (row)
    Halide::Func mean{"mean"}, factor{"factor"};  // (row)
    Halide::Func out{"out"};                      // (d, row); may be x itself

    explicit LayerNormKernel(ElementType type);

    Halide::Pipeline pipeline() const { return Halide::Pipeline({mean, factor, out}); }
};

}  // namespace heed
