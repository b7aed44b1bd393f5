#pragma once
// Rows of a matrix into another one; zeros for those that a padding hides.

#include "generators/common/device_memory.h"
#include "generators/contract/cuda_layer_arguments.h"

namespace heed {

HEED_KERNEL_ARGUMENTS(CopyRowsArguments, HEED_CUDA_COPY_ROWS)

struct CopyRowsDevice : CopyRowsArguments, Results {
    Halide::Var row{"row"};
    std::vector<Halide::Func> hidden;  // (row), of each part
    std::vector<Halide::RDom> all;     // element of a chunk, chunk, row; of each part

    explicit CopyRowsDevice(ElementType type) : CopyRowsArguments({type}) {
        using Halide::Expr;
        const Expr has_padding = padding_first != Halide::cast<uint64_t>(0);
        const Expr byte = load_at_if(has_padding, Halide::UInt(8), padding_first, row);
        for (const int width : {chunk_of(type), 1}) {
            hidden.emplace_back("hidden");
            hidden.back()(row) = has_padding && (byte != 0) == (true_hides != 0);
            const Expr on = (wide != 0) == (width > 1);
            all.emplace_back(0, width, 0, columns / width, 0, select(on, rows, 0), "all");
            const Halide::RDom &r = all.back();
            const Expr c = r.y * width + r.x, x = load_at(stored_type(type), after(from_first, r.z, from_stride), c);
            add(store_at(after(to_first, r.z, to_stride), c, select(hidden.back()(r.z), cast(x.type(), 0), x)));
        }
    }
};

}  // namespace heed
