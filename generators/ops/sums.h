#pragma once
// What gradients of dense layers add up: columns of dy for the bias, and what was found to what the caller has.

#include "generators/common/ceil_div.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(ColumnSumsArguments, HEED_COLUMN_SUMS)
HEED_KERNEL_ARGUMENTS(AddArguments, HEED_ADD)

// Sums of blocks of rows, then of blocks: of n rows an error of 64 + n / 64 roundings.
struct ColumnSumsKernel : ColumnSumsArguments {
    static constexpr int row_block = 64;
    Halide::Var c{"c"}, block{"block"};
    Halide::RDom over_block, over_blocks;
    Halide::Func of_block{"of_block"}, sums{"sums"};  // (c, block), (c)

    explicit ColumnSumsKernel(ElementType type)
        : ColumnSumsArguments({type}), over_block(0, row_block, "over_block"),
          over_blocks(0, ceil_div(x.dim(1).extent(), row_block), "over_blocks") {
        Halide::Expr rows = x.dim(1).extent(), row = block * row_block + over_block;
        over_block.where(row < rows);
        of_block(c, block) += to_float(type, x(c, Halide::unsafe_promise_clamped(row, 0, rows - 1)));
        sums(c) += of_block(c, over_blocks);
        x.dim(0).set_min(0);
        x.dim(1).set_min(0);
        sums.output_buffer().dim(0).set_bounds(0, x.dim(0).extent());
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline(sums); }
};

struct AddKernel : AddArguments {
    Halide::Var k{"k"}, n{"n"};
    Halide::Func sum{"sum"};  // (k, n)

    explicit AddKernel(ElementType type) : AddArguments({type}) {
        Halide::Expr added = from(k, n) + to_float(type, from_own(k, n));
        sum(k, n) = from_float(type, to_float(type, before(k, n)) + added);
        Halide::OutputImageParam buffer = sum.output_buffer();
        for (const int i : {0, 1}) {
            for (const Halide::ImageParam &input : {from, from_own, before}) {
                input.dim(i).set_min(0).set_stride(Halide::Expr());
            }
            buffer.dim(i).set_bounds(0, before.dim(i).extent()).set_stride(before.dim(i).stride());
        }
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline(sum); }
};

}  // namespace heed
