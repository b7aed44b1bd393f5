// Operations around attention on x86. All but the dropout mask are bound by memory: vectors along the elements of a
// row, one pass, no scratch beyond registers and the stack frame. A kernel is called for a block of rows that stays in
// the L1 cache.
#include "schedules/ops.h"

namespace heed {

using namespace Halide;

// Both parts of a vector of pairs are computed before either is stored: out may be x. Interleaved pairs leave as one
// dense store of both parts.
Passes schedule_rope_x86(RopeKernel &kernel, const Machine &machine) {
    Var no{"no"}, ni{"ni"};
    const int lanes = machine.lanes;
    kernel.out.bound(kernel.part, 0, 2)
        .split(kernel.n, no, ni, lanes, TailStrategy::GuardWithIf)
        .reorder(ni, kernel.part, no, kernel.head, kernel.token)
        .vectorize(ni)
        .unroll(kernel.part);
    kernel.rotated.compute_at(kernel.out, no)
        .store_in(MemoryType::Stack)
        .bound_extent(kernel.part, 2)
        .bound_extent(kernel.head, 1)
        .bound_extent(kernel.token, 1)
        .bound_storage(kernel.n, lanes)
        .reorder(kernel.n, kernel.part, kernel.head, kernel.token)
        .vectorize(kernel.n, lanes, TailStrategy::GuardWithIf)
        .unroll(kernel.part);
    kernel.out.specialize(kernel.is_half_split());
    kernel.out.specialize(kernel.is_interleaved());
    kernel.out.specialize_fail("the pairs are neither half-split nor interleaved");
    return {};
}

Passes schedule_kv_append_x86(KvAppendKernel &kernel, const Machine &machine) {
    RVar outer{"outer"}, inner{"inner"};
    Var lane{"lane"};
    const int lanes = machine.lanes;
    kernel.codes.reorder(kernel.d, kernel.head, kernel.token).vectorize(kernel.d, 4 * lanes, TailStrategy::GuardWithIf);
    kernel.scale.reorder(kernel.head, kernel.token);
    kernel.magnitude.compute_at(kernel.scale, kernel.head).store_in(MemoryType::Register);
    kernel.magnitude.update().split(kernel.over_d, outer, inner, lanes, TailStrategy::GuardWithIf);
    Func by_lane = kernel.magnitude.update().rfactor(inner, lane);
    by_lane.compute_at(kernel.scale, kernel.head)
        .store_in(MemoryType::Register)
        .bound_extent(lane, lanes)
        .vectorize(lane, lanes, TailStrategy::RoundUp)
        .update()
        .reorder(lane, outer)
        .vectorize(lane);
    return {};
}

// The statistics run along rows; the sums hold four vectors of a row in registers over all states.
Passes schedule_merge_states_x86(MergeStatesKernel &kernel, const Machine &machine) {
    const int lanes = machine.lanes, tile = 4 * lanes;
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
    return {};
}

// A counter gives four bytes: a vector of counters per step, its words interleaved into the row's scratch, from where
// the row is copied at its own alignment.
Passes schedule_dropout_mask_x86(DropoutMaskKernel &kernel, const Machine &machine) {
    constexpr int tile = 256;
    const int lanes = machine.lanes;
    Var jt{"jt"}, ji{"ji"}, kc{"kc"}, kw{"kw"}, kct{"kct"};
    kernel.keep.split(kernel.j, jt, ji, tile, TailStrategy::GuardWithIf)
        .reorder(ji, jt, kernel.i)
        .vectorize(ji, 4 * lanes);
    kernel.kept.compute_at(kernel.keep, jt)
        .store_in(MemoryType::Stack)
        .align_bounds(kernel.k, 4)
        .bound_storage(kernel.k, tile + 8 * lanes)
        .split(kernel.k, kc, kw, 4, TailStrategy::RoundUp)
        .split(kc, kct, kc, lanes, TailStrategy::RoundUp)
        .reorder(kc, kw, kct, kernel.i)
        .vectorize(kc)
        .unroll(kw);
    kernel.words.compute_at(kernel.kept, kct)
        .store_in(MemoryType::Register)
        .vectorize(kernel.counter, lanes, TailStrategy::RoundUp);
    return {};
}

// Rows lie in the L1 cache: three passes of vectors.
Passes schedule_layer_norm_x86(LayerNormKernel &kernel, const Machine &machine) {
    const int lanes = machine.lanes;
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
    return {};
}

// Row after row of k as whole vectors; the rest takes a fraction of that.
Passes schedule_attention_probs_x86(AttentionProbsKernel &kernel, const Machine &machine) {
    RVar outer{"outer"}, inner{"inner"};
    const int lanes = machine.lanes;
    kernel.dot.compute_at(kernel.scores, kernel.j).store_in(MemoryType::Register).bound_extent(kernel.j, 1);
    kernel.dot.update().split(kernel.over_d, outer, inner, lanes, TailStrategy::GuardWithIf);
    Func by_lane = kernel.dot.update().rfactor(inner, kernel.u);
    by_lane.compute_at(kernel.scores, kernel.j)
        .store_in(MemoryType::Register)
        .bound_extent(kernel.u, lanes)
        .bound_extent(kernel.j, 1)
        .vectorize(kernel.u, lanes, TailStrategy::RoundUp)
        .update()
        .reorder(kernel.u, outer)
        .vectorize(kernel.u);
    kernel.probs.vectorize(kernel.j, lanes, TailStrategy::GuardWithIf);
    kernel.probs_16.vectorize(kernel.j, lanes, TailStrategy::GuardWithIf);
    return {};
}

}  // namespace heed
