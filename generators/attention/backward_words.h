#pragma once
// Rows of bf16 as the tiles of backward_tiles.h read them, in words of two, and what those tiles leave out.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/fields.h"
#include "generators/contract/operations.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(BackwardWordsArguments, HEED_BACKWARD_WORDS)
HEED_KERNEL_ARGUMENTS(BackwardRepairArguments, HEED_BACKWARD_REPAIR)

struct BackwardWordsKernel : BackwardWordsArguments {
    Halide::Var c{"c"}, row{"row"}, chunk{"chunk"}, p{"p"}, u{"u"};
    Halide::RDom over_rows;
    Halide::Func largest_of_lane{"largest_of_lane"};  // (c)
    Halide::Func words{"words"}, pairs{"pairs"}, row_words{"row_words"}, columns{"columns"}, largest{"largest"};

    BackwardWordsKernel();

    Halide::Pipeline pipeline() const { return Halide::Pipeline({words, pairs, row_words, columns, largest}); }
};

struct BackwardRepairKernel : BackwardRepairArguments {
    Halide::Var n{"n"}, half{"half"}, p{"p"}, chunk{"chunk"};
    Halide::RDom over;
    Halide::Func sums{"sums"};

    BackwardRepairKernel();

    Halide::Pipeline pipeline() const { return Halide::Pipeline(sums); }
};

}  // namespace heed
