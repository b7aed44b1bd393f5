#pragma once
// Rows of a dropout mask as bytes: 1 = kept.

#include "dropout.h"

namespace heed {

struct DropoutMaskKernel {
    // Element (j, i) of the block is element first + i * row_length + j of the whole mask.
    Halide::Param<uint64_t> seed{"seed"}, offset{"offset"}, first{"first"}, row_length{"row_length"};
    Halide::Param<uint64_t> threshold{"threshold"};  // round(p * 2^32)

    Halide::Var j{"j"}, i{"i"}, k{"k"}, counter{"counter"};
    Halide::Func words{"words"};  // (counter, i): the four words of the counter-th counter of row i
    Halide::Func kept{"kept"};    // (k, i), k from the row's first counter on
    Halide::Func keep{"keep"};    // (j, i)

    DropoutMaskKernel();

    std::vector<Halide::Argument> arguments() const { return {seed, offset, first, row_length, threshold}; }
    Halide::Pipeline pipeline() const { return Halide::Pipeline(keep); }
};

}  // namespace heed
