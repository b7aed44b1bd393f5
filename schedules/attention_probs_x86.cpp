#include "generators/attention/probs.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

// Sweeps over a block of rows that stays in the L2 cache, vectors along the keys. Per vector of a plain call 5
// instructions make scores, 2 the maximum, about 16 weights and their sum, 3 the result. What a call for probabilities
// does not need of the other modes falls away.
OpModule make_attention_probs(const OpSpec &spec) {
    const int lanes = spec.machine().lanes;
    AttentionProbsKernel kernel(spec.type(), lanes);
    kernel.scores.vectorize(kernel.j, lanes, TailStrategy::GuardWithIf);
    kernel.scores.specialize(kernel.is_plain() && kernel.makes_probabilities());
    kernel.scores.specialize(kernel.is_plain());
    kernel.scores.specialize(kernel.has_mask_only());
    kernel.scores.specialize(kernel.has_bias_only());
    const std::pair<Func, Func> sums[] = {{kernel.lane_max, kernel.row_max}, {kernel.lane_sum, kernel.row_sum}};
    for (auto [by_lane, of_row] : sums) {
        by_lane.compute_at(of_row, kernel.i)
            .store_in(MemoryType::Register)
            .bound_extent(kernel.u, lanes)
            .bound_extent(kernel.i, 1)
            .vectorize(kernel.u, lanes, TailStrategy::RoundUp)
            .update()
            .reorder(kernel.u, kernel.over_blocks)
            .vectorize(kernel.u);
        of_row.update().atomic().vectorize(kernel.over_lanes);
    }
    const std::pair<Func, Func> factors[] = {{kernel.factor, kernel.probs},
                                             {kernel.factor.clone_in(kernel.probs_16), kernel.probs_16}};
    for (auto [factor, result] : factors) {
        factor.compute_at(result, kernel.i).store_in(MemoryType::Register).bound_extent(kernel.i, 1);
    }
    kernel.weights.vectorize(kernel.j, lanes, TailStrategy::GuardWithIf);
    kernel.probs.vectorize(kernel.j, lanes, TailStrategy::GuardWithIf);
    kernel.probs.specialize(kernel.makes_probabilities());
    kernel.probs_16.vectorize(kernel.j, lanes, TailStrategy::GuardWithIf);
    return compile(spec, kernel);
}

}  // namespace heed
