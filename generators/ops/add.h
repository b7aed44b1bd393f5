#pragma once
// to += from, a matrix whose elements may be anywhere (HEED_CUDA_ADD).

#include "generators/contract/cuda_layer_arguments.h"
#include "generators/ops/either_type.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(AddDeviceArguments, HEED_CUDA_ADD)

struct AddDevice : AddDeviceArguments, Results {
    Halide::RDom all;  // column, row

    explicit AddDevice(ElementType type) : AddDeviceArguments({type}), all(0, columns, 0, rows, "all") {
        using Halide::cast, Halide::Expr;
        const auto offset = [](const Expr &i, const Expr &block, const Expr &outer, const Expr &inner) {
            const Expr whole = i / block;
            return cast<uint64_t>(whole) * outer + cast<uint64_t>(i - whole * block) * inner;
        };
        const Expr placed =
            offset(all.y, row_block, row_outer, row_inner) + offset(all.x, column_block, column_outer, column_inner);
        const Expr packed = cast<uint64_t>(all.y) * cast<uint64_t>(columns) + cast<uint64_t>(all.x);
        const Expr from = select(from_placed != 0, placed, packed);
        const EitherType source = {type, from_is_f32}, target = {type, to_is_f32};
        const Expr at = to_first + target.bytes(placed);
        add(target.store(at, target.load(at) + source.load(from_first + source.bytes(from))));
    }
};

}  // namespace heed
