#include <algorithm>

#include "generators/ops/attention_probs.h"
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

// Sums are in registers until they are stored. Two steps at once, as in linear_x86.cpp.
void schedule_products(const AttentionProbsKernel &kernel, ProbsTile &tile, int vector) {
    Var panels("panels"), column("column");
    RVar steps("steps"), step("step");
    tile.products.hoist_storage_root()
        .store_in(MemoryType::Heap)
        .bound_extent(tile.r, kernel.tile.rows)
        .bound_extent(tile.t, 1)
        .split(kernel.j, panels, column, kernel.tile.columns, TailStrategy::RoundUp)
        .reorder(column, tile.r, panels, tile.t)
        .vectorize(column, vector)
        .unroll(column)
        .unroll(tile.r);
    tile.sum.compute_at(tile.products, panels)
        .store_in(MemoryType::Register)
        .bound_extent(tile.lane, kernel.tile.columns)
        .bound_extent(tile.r, kernel.tile.rows)
        .bound_extent(tile.panel, 1)
        .bound_extent(tile.t, 1)
        .vectorize(tile.lane, vector)
        .unroll(tile.lane)
        .unroll(tile.r);
    tile.sum.update()
        .split(tile.over_k.x, steps, step, 2)
        .reorder(tile.lane, tile.r, step, steps, tile.over_k.y)
        .unroll(step)
        .vectorize(tile.lane, vector)
        .unroll(tile.lane)
        .unroll(tile.r);
}

// A row's scores and weights stay in the L1 cache from one sweep to the next.
void schedule_lines(const AttentionProbsKernel &kernel, ProbsLines &lines, const LoopLevel &row, int vector) {
    for (Func f : {lines.scores, lines.weights}) {
        f.compute_at(row)
            .hoist_storage_root()
            .store_in(MemoryType::Heap)
            .bound_extent(lines.i, 1)
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
    for (Func f : lines.of_row()) f.compute_at(row).store_in(MemoryType::Register).bound_extent(lines.i, 1);
}

void schedule_result(const AttentionProbsKernel &kernel, ProbsResult &result, int vector) {
    const auto store = [&](Stage stage) {
        stage.vectorize(kernel.j, vector, TailStrategy::GuardWithIf);
        stage.specialize(kernel.makes_probabilities());
    };
    if (kernel.tile.rows == 0) {
        schedule_lines(kernel, result.lines, {result.wanted, kernel.i}, vector);
        result.wanted.partition(kernel.i, Partition::Never);
        store(result.wanted);
        return;
    }
    const RVar r = result.over_rows.x, t = result.over_rows.y;
    schedule_lines(kernel, result.lines, {result.wanted, r}, vector);
    result.tile.products.compute_at(result.wanted, t);
    schedule_products(kernel, result.tile, vector);
    store(result.wanted.update().reorder(kernel.j, r, t).partition(r, Partition::Never).partition(t, Partition::Never));
}

OpModule make_probs(const OpSpec &spec, const LinearTile &tile) {
    const int vector = spec.machine().lanes;
    AttentionProbsKernel kernel(spec.type(), tile);
    kernel.scores.vectorize(kernel.j, vector, TailStrategy::GuardWithIf);
    schedule_result(kernel, kernel.probs, vector);
    if (spec.type() != ElementType::f32) schedule_result(kernel, kernel.probs_16, vector);
    return compile(spec, kernel, {}, tile.rows, tile.columns);
}

}  // namespace

// Five sweeps of vectors along the keys of a row, in the L1 cache. Per vector of a plain call 5 instructions make
// scores, 2 the maximum, about 16 weights and their sum, 3 the result. What a call for probabilities does not need of
// the other modes falls away. Of tiles the products of 12 rows (AVX2: 6) with all keys, 12 KiB of 256 keys, are made
// before the sweeps of each of them.
OpModule make_attention_probs(const OpSpec &spec) { return make_probs(spec, {}); }

OpModule make_attention_probs_tiles(const OpSpec &spec) {
    return make_probs(spec, {spec.rows, 2 * spec.machine().lanes, 1, false, false});
}

}  // namespace heed
