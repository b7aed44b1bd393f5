#include "generators/contract/fields.h"
#include "generators/ops/sums.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

// A few columns over all rows: a block's sums stay in the L1 cache.
OpModule make_column_sums(const OpSpec &spec) {
    ColumnSumsKernel kernel(spec.type());
    const int lanes = spec.machine().lanes;
    kernel.sums.vectorize(kernel.c, lanes, TailStrategy::GuardWithIf)
        .update()
        .reorder(kernel.c, kernel.over_parts)
        .vectorize(kernel.c, lanes, TailStrategy::GuardWithIf);
    kernel.of_part.compute_at(kernel.sums, kernel.over_parts)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.part, 1)
        .bound_storage(kernel.c, sum_columns)
        .vectorize(kernel.c, lanes, TailStrategy::GuardWithIf)
        .update()
        .reorder(kernel.c, kernel.over_part, kernel.part)
        .vectorize(kernel.c, lanes, TailStrategy::GuardWithIf);
    return compile(spec, kernel);
}

// Bound by memory; scattered elements go one by one.
OpModule make_add(const OpSpec &spec) {
    AddKernel kernel(spec.type());
    const auto stride = [](const ImageParam &buffer) { return buffer.dim(0).stride(); };
    for (const auto &[some, none] : {std::pair{kernel.from, kernel.from_own}, {kernel.from_own, kernel.from}}) {
        kernel.sum.specialize(stride(kernel.before) == 1 && stride(some) == 1 && stride(none) == 0)
            .vectorize(kernel.k, spec.machine().lanes, TailStrategy::GuardWithIf);
    }
    return compile(spec, kernel);
}

}  // namespace heed
