#include "generators/contract/fields.h"
#include "generators/ops/sums.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

void sum_by_blocks(Func &sums, const RVar &over_blocks, Func &of_block, const RVar &over_block, const Var &block,
                   const Var &column, int lanes) {
    sums.vectorize(column, lanes, TailStrategy::GuardWithIf)
        .update()
        .reorder(column, over_blocks)
        .vectorize(column, lanes, TailStrategy::GuardWithIf);
    of_block.compute_at(sums, over_blocks)
        .store_in(MemoryType::Stack)
        .bound_extent(block, 1)
        .bound_storage(column, sum_columns)
        .vectorize(column, lanes, TailStrategy::GuardWithIf)
        .update()
        .reorder(column, over_block, block)
        .vectorize(column, lanes, TailStrategy::GuardWithIf);
}

// A few columns over all rows: a block's sums stay in the L1 cache.
OpModule make_column_sums(const OpSpec &spec) {
    ColumnSumsKernel kernel(spec.type());
    sum_by_blocks(kernel.sums, kernel.over_parts, kernel.of_part, kernel.over_part, kernel.part, kernel.c,
                  spec.machine().lanes);
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
