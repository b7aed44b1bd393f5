#include "generators/ops/layer_norm.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

// Rows are in the L1 cache: three passes of vectors.
OpModule make_layer_norm(const OpSpec &spec) {
    LayerNormKernel kernel(spec.type());
    const int lanes = spec.machine().lanes;
    const auto by_lanes = [&](Func &total, Func &consumer) {
        RVar outer{"outer"}, inner{"inner"};
        total.compute_at(consumer, kernel.row).store_in(MemoryType::Register);
        total.update().split(kernel.over_d, outer, inner, lanes, TailStrategy::GuardWithIf);
        Func lane_sums = total.update().rfactor(inner, kernel.u);
        lane_sums.compute_at(consumer, kernel.row)
            .store_in(MemoryType::Register)
            .bound_extent(kernel.u, lanes)
            .vectorize(kernel.u, lanes, TailStrategy::RoundUp)
            .update()
            .reorder(kernel.u, outer)
            .vectorize(kernel.u);
    };
    by_lanes(kernel.sum, kernel.mean);
    by_lanes(kernel.squares, kernel.factor);
    kernel.out.vectorize(kernel.d, lanes, TailStrategy::GuardWithIf);
    return compile(spec, kernel);
}

}  // namespace heed
