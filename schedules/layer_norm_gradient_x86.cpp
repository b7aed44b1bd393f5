#include "generators/contract/fields.h"
#include "generators/ops/layer_norm_gradient.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

// A row of x and one of dy are in the L1 cache: four passes of vectors for the sums, one for dx.
OpModule make_layer_norm_gradient(const OpSpec &spec) {
    LayerNormGradientKernel kernel(spec.type());
    const int lanes = spec.machine().lanes;
    const auto by_lanes = [&](Func &terms, Func &consumer) {
        terms.compute_at(consumer, kernel.row)
            .store_in(MemoryType::Stack)
            .bound_extent(kernel.u, LayerNormGradientKernel::sum_lanes)
            .bound_extent(kernel.row, 1)
            .vectorize(kernel.u, lanes)
            .update()
            .reorder(kernel.u, kernel.over_d, kernel.row)
            .vectorize(kernel.u, lanes)
            .unroll(kernel.u);
    };
    by_lanes(kernel.sum, kernel.mean);
    by_lanes(kernel.squares, kernel.factor);
    by_lanes(kernel.sum_g, kernel.mean_g);
    by_lanes(kernel.sum_gn, kernel.mean_gn);
    kernel.dx.vectorize(kernel.d, lanes, TailStrategy::GuardWithIf);
    return compile(spec, kernel);
}

// A few columns over all rows, two vectors of sums at once.
OpModule make_layer_norm_sums(const OpSpec &spec) {
    LayerNormSumsKernel kernel(spec.type());
    kernel.total.compute_root().store_in(MemoryType::Stack).bound_storage(kernel.d, sum_columns);
    sum_by_blocks(kernel.total, kernel.over_blocks, kernel.of_block, kernel.over_block, kernel.block, kernel.d,
                  spec.machine().lanes);
    return compile(spec, kernel);
}

}  // namespace heed
