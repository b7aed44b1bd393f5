// Words of bf16 for the tiles of gradients, and their repair: bound by memory, by vectors of what is side by side in
// the result.
#include "generators/attention/backward_words.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

OpModule make_attention_backward_words(const OpSpec &spec) {
    BackwardWordsKernel kernel;
    const int lanes = spec.machine().lanes;
    kernel.words.vectorize(kernel.row, lanes, TailStrategy::GuardWithIf);
    kernel.row_words.vectorize(kernel.p, lanes, TailStrategy::GuardWithIf);
    kernel.pairs.vectorize(kernel.c, lanes).unroll(kernel.c);
    kernel.columns.vectorize(kernel.p, lanes, TailStrategy::GuardWithIf);
    kernel.largest_of_lane.compute_at(kernel.largest, kernel.u)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.c, backward_chunk)
        .vectorize(kernel.c, 2 * lanes)
        .update()
        .reorder(kernel.c, kernel.over_rows.x, kernel.over_rows.y)
        .vectorize(kernel.c, 2 * lanes);
    return compile(spec, kernel);
}

// Whether an element is finite is asked once for a column of factors.
OpModule make_attention_backward_repair(const OpSpec &spec) {
    BackwardRepairKernel kernel;
    kernel.sums.update().reorder(kernel.n, kernel.over, kernel.half, kernel.p, kernel.chunk);
    return compile(spec, kernel);
}

}  // namespace heed
