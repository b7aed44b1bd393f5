#include "generators/ops/merge_states.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

// The statistics run along rows; the sums hold four vectors of a row in registers over all states.
OpModule make_merge_states(const OpSpec &spec) {
    MergeStatesKernel kernel(spec.type());
    const int lanes = spec.machine().lanes, tile = 4 * lanes;
    for (Func f : {kernel.row_max, kernel.row_sum}) {
        f.vectorize(kernel.row, lanes, TailStrategy::GuardWithIf)
            .update()
            .reorder(kernel.row, kernel.over_states)
            .vectorize(kernel.row, lanes, TailStrategy::GuardWithIf);
    }
    kernel.weights.vectorize(kernel.row, lanes, TailStrategy::GuardWithIf);
    kernel.merged_lse.vectorize(kernel.row, lanes, TailStrategy::GuardWithIf);
    Var dt{"dt"}, di{"di"};
    kernel.out.split(kernel.d, dt, di, tile, TailStrategy::GuardWithIf)
        .reorder(di, dt, kernel.row)
        .vectorize(di, lanes);
    kernel.num_keyed.compute_at(kernel.out, kernel.row).store_in(MemoryType::Register);
    kernel.sum.compute_at(kernel.out, dt)
        .store_in(MemoryType::Register)
        .bound_storage(kernel.d, tile)
        .vectorize(kernel.d, lanes, TailStrategy::RoundUp)
        .update()
        .reorder(kernel.d, kernel.over_states)
        .vectorize(kernel.d, lanes, TailStrategy::GuardWithIf);
    return compile(spec, kernel);
}

}  // namespace heed
