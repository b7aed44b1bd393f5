#pragma once
// A matrix with its rows as columns, and zeros in columns after the last row.

#include "generators/common/device_memory.h"
#include "generators/contract/cuda_layer_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(TransposeArguments, HEED_CUDA_TRANSPOSE)

struct TransposeDevice : TransposeArguments, Results {
    Halide::Var column{"column"}, row{"row"};
    Halide::Func from{"from"};  // (column, row): elements in words of 32 bits
    Halide::RDom all;           // column, row of the destination

    explicit TransposeDevice(ElementType type) : TransposeArguments({type}), all(0, to_columns, 0, columns, "all") {
        const Halide::Type bits = Halide::UInt(stored_type(type).bits());
        from(column, row) = Halide::cast<uint32_t>(
            load_at_if(row < rows && column < columns, bits, after(from_first, row, from_stride), column));
        add(store_at(after(to_first, all.y, to_stride), all.x, cast(bits, from(all.y, all.x))));
    }
};

}  // namespace heed
