#pragma once
// to += from, a matrix whose elements may be anywhere (HEED_CUDA_ADD).

#include "generators/common/device_memory.h"
#include "generators/contract/cuda_layer_arguments.h"

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
        const auto address = [](const Expr &first, const Expr &index, ElementType of) {
            return first + index * cast<uint64_t>(stored_type(of).bytes());
        };
        // An element of the kernel's type, or of f32 where an argument says so.
        const auto load = [&](const Expr &first, const Expr &index, const Expr &is_f32) {
            if (type == ElementType::f32) return float_at(type, address(first, index, type), 0);
            const Expr own = load_at_if(is_f32 == 0, stored_type(type), address(first, index, type), 0);
            const Expr f32 = load_at_if(is_f32 != 0, Halide::Float(32), address(first, index, ElementType::f32), 0);
            return select(is_f32 != 0, f32, to_float(type, own));
        };
        const Expr sum = load(to_first, placed, to_is_f32) + load(from_first, from, from_is_f32);
        const Expr is_f32 = type == ElementType::f32 ? Expr(Halide::Internal::const_true()) : to_is_f32 != 0;
        add(store_at_if(is_f32, address(to_first, placed, ElementType::f32), 0, sum) +
            store_at_if(!is_f32, address(to_first, placed, type), 0, from_float(type, sum)));
    }
};

}  // namespace heed
