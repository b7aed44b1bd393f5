#pragma once
// Rows on their way into an int8 cache: per row of head_dim elements scale = max|x| / 127, code = x / scale rounded
// half to even. A row of zeros has scale 0 and codes 0; a row with NaN or infinity has scale NaN and codes 0.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operation_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(KvAppendArguments, HEED_KV_APPEND)

struct KvAppendKernel : KvAppendArguments {
    Halide::Var d{"d"}, head{"head"}, token{"token"};
    Halide::RDom over_d;
    Halide::Func magnitude{"magnitude"};  // bits of max|x|: ordered as the values, infinity and NaN above all
    Halide::Func scale{"scale"};          // (head, token)
    Halide::Func codes{"codes"};          // (d, head, token)

    explicit KvAppendKernel(ElementType type);

    Halide::Pipeline pipeline() const { return Halide::Pipeline({codes, scale}); }
};

}  // namespace heed
