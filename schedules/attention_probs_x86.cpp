#include "generators/attention/probs.h"
#include "schedules/operation.h"

namespace heed {

using namespace Halide;

namespace {

void specialize_scores(const AttentionProbsKernel &kernel, Stage scores) {
    scores.specialize(kernel.is_plain() && kernel.makes_probabilities());
    scores.specialize(kernel.is_plain());
    scores.specialize(kernel.has_mask_only());
    scores.specialize(kernel.has_bias_only());
}

// A row's scores and weights stay in the L1 cache from one sweep to the next.
void schedule_lines(const AttentionProbsKernel &kernel, ProbsLines &lines, Func &result, int vector) {
    for (Func f : {lines.scores, lines.weights}) {
        f.compute_at(result, kernel.i)
            .hoist_storage_root()
            .store_in(MemoryType::Heap)
            .bound_extent(kernel.i, 1)
            .vectorize(kernel.j, vector, TailStrategy::RoundUp);
    }
    lines.scores.update(0).vectorize(lines.keys, vector, TailStrategy::GuardWithIf);
    specialize_scores(kernel, lines.scores.update(0));
    lines.scores.update(1).vectorize(lines.after_keys, vector, TailStrategy::GuardWithIf);
    for (Func by_lane : {lines.lane_max, lines.lane_sum}) {
        by_lane.bound_extent(lines.u, lines.lanes)
            .vectorize(lines.u, vector)
            .unroll(lines.u)
            .update()
            .reorder(lines.u, lines.over_blocks)
            .vectorize(lines.u, vector)
            .unroll(lines.u);
    }
    for (const auto &halves : {lines.halves_of_max, lines.halves_of_sum}) {
        int width = lines.lanes;
        for (Func half : halves) {
            width /= 2;
            half.bound_extent(lines.u, width).vectorize(lines.u, std::min(vector, width)).unroll(lines.u);
        }
    }
    for (Func f : lines.of_row())
        f.compute_at(result, kernel.i).store_in(MemoryType::Register).bound_extent(kernel.i, 1);
    result.vectorize(kernel.j, vector, TailStrategy::GuardWithIf).partition(kernel.i, Partition::Never);
    result.specialize(kernel.makes_probabilities());
}

}  // namespace

// Five sweeps of vectors along the keys of a row, in the L1 cache. Per vector of a plain call 5 instructions make
// scores, 2 the maximum, about 16 weights and their sum, 3 the result. What a call for probabilities does not need of
// the other modes falls away.
OpModule make_attention_probs(const OpSpec &spec) {
    const int vector = spec.machine().lanes;
    AttentionProbsKernel kernel(spec.type());
    kernel.scores.vectorize(kernel.j, vector, TailStrategy::GuardWithIf);
    schedule_lines(kernel, kernel.lines, kernel.probs, vector);
    if (spec.type() != ElementType::f32) schedule_lines(kernel, kernel.lines_16, kernel.probs_16, vector);
    return compile(spec, kernel);
}

}  // namespace heed
