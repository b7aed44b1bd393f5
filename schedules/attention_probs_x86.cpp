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

// A row's scores or weights stay in the L1 cache from one sweep to the next.
void keep_row(Func f, const AttentionProbsKernel &kernel, Func &result, int vector) {
    f.compute_at(result, kernel.i)
        .hoist_storage_root()
        .store_in(MemoryType::Heap)
        .bound_extent(kernel.i, 1)
        .vectorize(kernel.j, vector, TailStrategy::RoundUp);
}

void schedule_scores(const AttentionProbsKernel &kernel, ProbsLines &lines, Func &result, int vector) {
    keep_row(lines.scores, kernel, result, vector);
    lines.scores.update(0).vectorize(lines.keys, vector, TailStrategy::GuardWithIf);
    specialize_scores(kernel, lines.scores.update(0));
    lines.scores.update(1).vectorize(lines.after_keys, vector, TailStrategy::GuardWithIf);
}

void schedule_weights(const AttentionProbsKernel &kernel, ProbsLines &lines, Func &result, int vector) {
    keep_row(lines.weights, kernel, result, vector);
    const auto in_vectors = [&](Stage stage) { stage.vectorize(lines.u, vector).unroll(lines.u); };
    for (Func by_lane : {lines.lane_max, lines.lane_sum}) in_vectors(by_lane.bound_extent(lines.u, lines.lanes));
    in_vectors(lines.lane_sum.update().reorder(lines.u, lines.over_blocks));
    if (lines.lane_max.num_update_definitions() == 1) {
        in_vectors(lines.lane_max.update().reorder(lines.u, lines.over_blocks));
    } else {
        in_vectors(lines.lane_max.update(0).reorder(lines.u, lines.whole_blocks));
        in_vectors(lines.lane_max.update(1).reorder(lines.u, lines.last_blocks));
        int n = 0;
        for (const RDom &keys : {lines.in_whole, lines.in_last})
            lines.weights.update(n++).vectorize(keys, vector, TailStrategy::GuardWithIf);
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
    // Without a sink a row's factor is a division: two exponentials of single floats take as long as 100 keys.
    lines.factor.specialize(is_negative_infinity(kernel.sink));
}

void schedule_lines(AttentionProbsKernel &kernel, ProbsLines &lines, Func &result, int vector) {
    schedule_scores(kernel, lines, result, vector);
    schedule_weights(kernel, lines, result, vector);
    result.vectorize(kernel.j, vector, TailStrategy::GuardWithIf).partition(kernel.i, Partition::Never);
    if (&result == &kernel.own()) {
        schedule_weights(kernel, kernel.plain, result, vector);
        result.specialize(kernel.makes_plain());
    }
    result.specialize(kernel.makes_probabilities());
}

}  // namespace

// Five sweeps of vectors along the keys of a row, in the L1 cache. Per vector of a plain call 5 instructions make
// scores, 2 the maximum, about 16 weights and their sum, 3 the result. What a call for probabilities does not need of
// the other modes falls away. Plain probabilities of rows that see all keys: four sweeps, of which the first two make
// scores where they read them; in bf16 with AVX-512 they have 2, 11, 1 and 5 instructions. On a Xeon with AMX, 12 heads
// of 768 x 768 of bf16, a quarter of their time are stores that leave the caches.
OpModule make_attention_probs(const OpSpec &spec) {
    const int vector = spec.machine().lanes;
    AttentionProbsKernel kernel(spec.type(), spec.machine().vector_registers == 32);
    kernel.scores.vectorize(kernel.j, vector, TailStrategy::GuardWithIf);
    schedule_lines(kernel, kernel.lines, kernel.probs, vector);
    if (spec.type() != ElementType::f32) schedule_lines(kernel, kernel.lines_16, kernel.probs_16, vector);
    return compile(spec, kernel);
}

}  // namespace heed
