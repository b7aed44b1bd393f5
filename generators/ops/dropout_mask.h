#pragma once
// Rows of a dropout mask as bytes: 1 = kept.

#include "generators/attention/dropout.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operation_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(DropoutMaskArguments, HEED_DROPOUT_MASK)

struct DropoutMaskKernel : DropoutMaskArguments {
    Halide::Var j{"j"}, i{"i"}, k{"k"}, counter{"counter"};
    Halide::Func words{"words"};  // (counter, i): the four words of the counter-th counter of row i
    Halide::Func kept{"kept"};    // (k, i), k from the row's first counter on
    Halide::Func keep{"keep"};    // (j, i)

    DropoutMaskKernel();

    Halide::Pipeline pipeline() const { return Halide::Pipeline(keep); }
};

}  // namespace heed
