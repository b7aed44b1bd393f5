#pragma once
// What gradients of dense layers add up: columns of dy for the bias, and what was found to what the caller has.

#include "generators/common/ceil_div.h"
#include "generators/common/kernel_arguments.h"
#include "generators/contract/cuda_layer_arguments.h"
#include "generators/contract/operations.h"
#include "generators/ops/either_type.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(ColumnSumsArguments, HEED_COLUMN_SUMS)
HEED_KERNEL_ARGUMENTS(AddArguments, HEED_ADD)

// Rows in parts: of row number i of a part.
struct SummedRows {
    using Expr = Halide::Expr;
    Expr parts, part_rows;
    std::function<Expr(const Expr &c, const Expr &part, const Expr &i)> exists, x;
    std::vector<Halide::Var> more = {};  // further coordinates of a sum
};

// Sums of parts of the rows, then of the parts.
struct ColumnSums {
    Halide::Var c{"c"}, part{"part"};
    Halide::RDom over_part, over_parts;
    Halide::Func of_part{"of_part"}, sums{"sums"};  // (c, part, ..), (c, ..)

    explicit ColumnSums(const SummedRows &in)
        : over_part(0, in.part_rows, "over_part"), over_parts(0, in.parts, "over_parts") {
        const auto place = [&](std::vector<Halide::Expr> first) {
            first.insert(first.end(), in.more.begin(), in.more.end());
            return first;
        };
        over_part.where(in.exists(c, part, over_part));
        of_part(place({c, part})) += in.x(c, part, over_part);
        sums(place({c})) += of_part(place({c, over_parts}));
    }
};

// Sums of n rows are off by at most 64 + n / 64 roundings.
struct ColumnSumsKernel : ColumnSumsArguments, ColumnSums {
    explicit ColumnSumsKernel(ElementType type) : ColumnSumsArguments({type}), ColumnSums(blocks(type)) {
        x.dim(0).set_min(0);
        x.dim(1).set_min(0);
        sums.output_buffer().dim(0).set_bounds(0, x.dim(0).extent());
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline(sums); }

private:
    SummedRows blocks(ElementType type) const {
        using Halide::Expr;
        constexpr int row_block = 64;
        const Expr rows = x.dim(1).extent();
        const auto row = [](const Expr &block, const Expr &i) { return block * row_block + i; };
        return {ceil_div(rows, row_block), row_block,
                [=](const Expr &, const Expr &block, const Expr &i) { return row(block, i) < rows; },
                [=](const Expr &column, const Expr &block, const Expr &i) {
                    return to_float(type, x(column, Halide::unsafe_promise_clamped(row(block, i), 0, rows - 1)));
                }};
    }
};

HEED_KERNEL_ARGUMENTS(ColumnSumsDeviceArguments, HEED_CUDA_COLUMN_SUMS)

// Sums of slices of the rows: a warp adds up every eighth row of a slice, then the warps' sums are added.
struct ColumnSumsDevice : ColumnSumsDeviceArguments, ColumnSums, Results {
    static constexpr int warps = 8;
    Halide::RDom all;  // column, slice

    explicit ColumnSumsDevice(ElementType type)
        : ColumnSumsDeviceArguments({type}), ColumnSums(slices({type, from_is_f32})),
          all(0, columns, 0, (rows + slice_rows - 1) / slice_rows, "all") {
        using Halide::Expr;
        const EitherType elements = {type, to_is_f32};
        const Expr to = after(after(to_first, all.y, elements.bytes(columns)), all.x, elements.bytes(1));
        const Expr sum = sums(all.x, all.y);
        add(elements.store(to, select(adds != 0, elements.load(to) + sum, sum)));
    }

private:
    // Strides of 64 bits, so that a loop over rows adds to an address.
    SummedRows slices(const EitherType &elements) const {
        using Halide::Expr;
        const Halide::Var slice{"slice"};
        const Expr first = slice * slice_rows;
        return {warps,
                ceil_div(slice_rows, warps),
                [=](const Expr &column, const Expr &warp, const Expr &i) {
                    return i * warps + warp < min(slice_rows, rows - first) && column < columns;
                },
                [=](const Expr &column, const Expr &warp, const Expr &i) {
                    const Expr row_bytes = elements.bytes(from_stride),
                               of_warp = after(from_first, first + warp, row_bytes);
                    return elements.load(after(after(of_warp, column, elements.bytes(1)), i, row_bytes * warps));
                },
                {slice}};
    }
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
