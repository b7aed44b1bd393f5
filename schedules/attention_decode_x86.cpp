// Decode on x86: few query rows, bound by the memory that holds k and v. Lanes run along d, so that each row of k and v
// is read once, as whole vectors in their order in memory, for all rows of the tile (the heads of a group).
//
//   task = (blocks of rows, of one or more heads of keys and values; sequence, split of the keys), parallel; per block
//   of keys, for each block of rows, so that memory is read once and in its order:
//     dots     row_block rows x key_tile keys accumulate over d in registers
//     logits   dot_lanes keys at once: a tree of shuffles and adds leaves one key per lane (lane_sums.h)
//     out     += weights (scalars) x v (vectors)   register tile: value_rows x value_vectors, over value_keys keys
// The keys of the next head, or of the next block, are asked for meanwhile (prefetch_rows.h). The splits of a row are
// merged in a second, small parallel loop; those of a head follow each other, so that what is asked for beyond the end
// of one is the beginning of the next (32 / 8 heads of 128 elements of bf16, heads outside, 4096 keys from memory, Zen
// 5, 2 threads: 0.85 of the time of splits of all heads side by side that ask for the next block, into L2).
//
// Where the heads of a key are neighbours in memory ([batch, len, heads, head_dim]), a head's rows are far apart, and
// the prefetchers of the cache do not follow. With whole_keys all blocks of rows of the task then go through a block of
// keys together: a tile of keys for all heads, then the next tile, and so the values; dots, logits and sums of all
// heads are in the workspace. One row for each head of floats of 128 elements, Zen 3, 2 threads: 13 -> 24 GB/s of the
// 25 that a plain read reaches; four rows 14 -> 19. Zen 5, four rows, of what a plain read reaches: 0.68 to 0.87, of
// bf16, head after head, 0.57 to 0.75, depending on how busy other guests keep the memory. Measured otherwise, Xeon
// with 2 cores, 4096 keys, head_dim 128, of what a plain read reaches: f32 with 1, 4, 8 rows for a head of keys and
// values 0.9, 0.85, 0.8; bf16 0.9, 0.83, 0.55. In pages of 16 keys, 8 heads of 128 floats, 4096 keys, Zen 5, 2 threads,
// of the time of one head after the other: 1 row 0.47, 4 rows 0.62, 8 rows 0.59; 1.0 to 1.1 times that of keys in a
// row. Of bf16, with four rows: 0.65, 16 sequences of 2048 keys 0.62; 1.0 times that of keys in a row.
#include <algorithm>
#include <numeric>

#include "schedules/task_schedule.h"

namespace heed {

using namespace Halide;

namespace {

class DecodeSchedule : TaskSchedule {
public:
    DecodeSchedule(AttentionStages &stages, const AttentionConfig &config)
        : TaskSchedule(stages, config, LoopLevel(stages.decode.split_state, stages.task)) {}

    void apply() {
        outputs();
        task_stages();
        sweep();
        for (size_t n = 0; n < st.chains.size(); n++) chain(*st.chains[n], static_cast<int>(n));
    }

private:
    Var rt{"rt"}, tile{"tile"};
    RVar blocks{"blocks"}, block{"block"};

    // Rows of elements of a head are small here and stay in the frame, unless their length comes at run time.
    Func &head_rows(Func &f) { return cfg.any_head_dim() ? in_workspace(f) : in_frame(f); }
    Func &one_row(Func &f) { return one_block(f).bound_extent(st.row, 1); }

    // For all blocks of rows of a task.
    Func &of_rows(Func &f) {
        return (cfg.task_blocks > 1 ? in_workspace(f).bound_storage(st.rb, cfg.task_blocks) : head_rows(f))
            .bound_extent(st.row, cfg.row_block);
    }

    bool joins_blocks(const BlockChain &ch) const { return cfg.whole_keys > 0 && !ch.ranged; }

    // For the blocks of rows that go through a block of keys together.
    Func &of_keys(Func &f, const BlockChain &ch) {
        f.bound_extent(st.row, cfg.row_block);
        return joins_blocks(ch) ? of_joined_blocks(f.compute_at(st.state, blocks)) : of_block(f, ch);
    }
    Func &of_joined_blocks(Func &f) {
        f.hoist_storage(task_loop).store_in(MemoryType::Heap);
        return one_task(f).bound_storage(st.rb, cfg.task_blocks).bound_extent(st.kb, 1);
    }

    void outputs() {
        if (!cfg.any_head_dim()) {
            st.out.bound(st.d, 0, cfg.head_dim_v);
            st.decode.split_state.bound(st.x, 0, cfg.state_slots() + cfg.padded(cfg.head_dim_v));
        }
        // Each row of out belongs to one task: no race, though Halide cannot prove it.
        const RVar row = st.results.x, t = st.results.y;
        st.out.update()
            .allow_race_conditions()
            .reorder(st.d, row, t)
            .parallel(t)
            .partition(t, Partition::Never)
            .vectorize(st.d, cfg.lanes, TailStrategy::GuardWithIf);
        one_row(st.row_result.compute_at(st.out, row).store_in(MemoryType::Register));
        one_row(st.decode.split_max.compute_at(st.out, row).store_in(MemoryType::Register));
        one_row(st.decode.split_factor.compute_at(st.decode.merged, st.decode.over_splits.x)
                    .store_in(MemoryType::Register));
        one_row(st.decode.merged.compute_at(st.out, row).store_in(MemoryType::Heap))
            .bound_storage(st.x, cfg.padded(cfg.head_dim_v) + 2 * cfg.lanes)
            .vectorize(st.x, cfg.lanes, TailStrategy::GuardWithIf)
            .update()
            .reorder(st.x, st.decode.over_splits)
            .vectorize(st.x, cfg.lanes, TailStrategy::GuardWithIf);
        st.decode.split_state.compute_root()
            .reorder_storage(st.x, st.row, st.rb, st.task)
            .reorder(st.x, st.row, st.rb, st.task)
            .bound(st.row, 0, cfg.row_block)
            .bound(st.rb, 0, st.decode.blocks_per_task)
            .bound(st.task, 0, st.decode.num_split_tasks)
            .parallel(st.task)
            .partition(st.task, Partition::Never)
            .vectorize(st.x, cfg.lanes, TailStrategy::GuardWithIf);
    }

    void task_stages() {
        in_frame(st.fields).bound(st.d, 0, num_task_fields).unroll(st.d);
        in_frame(st.block_range);
        if (cfg.task_blocks > 1) in_frame(st.decode.heads).bound_storage(st.rb, cfg.task_blocks);
        Func &q = cfg.pads_rows() ? padded_rows(st.q_padded.rows, st.q_padded, cfg.head_dim)
                                  : along_d(st.q_rows, st.d, cfg.query_elements());
        of_rows(q);
        if (!cfg.pads_rows()) {
            q.vectorize(st.d, cfg.lanes);
        }
        along_d(of_rows(st.state), st.x, cfg.head_dim_v, cfg.state_slots())
            .reorder_storage(st.x, st.row, st.rb, st.t, st.sp)
            .reorder(st.x, st.row, st.rb)
            .vectorize(st.x, cfg.lanes, TailStrategy::RoundUp);
    }

    void chain(BlockChain &ch, int update) {
        const int lanes = cfg.dot_lanes, rows = cfg.row_block;
        // A step reads all of a vector of slots before it writes: no race, though Halide cannot prove it.
        RVar xo("xo"), xv("xv");
        Stage step = st.state.update(update);
        step.allow_race_conditions()
            .split(ch.steps.x, xo, xv, lanes)
            .reorder(xv, st.row, xo, st.t, st.sp, ch.steps.z, ch.steps.y)
            .partition(ch.steps.z, Partition::Never)
            .partition(ch.steps.y, Partition::Never)
            .vectorize(xv)
            .unroll(st.row);
        if (joins_blocks(ch)) {
            step.split(ch.steps.z, blocks, block, st.decode.blocks_at_once).partition(blocks, Partition::Never);
        }
        // Known indices: LLVM then knows that no store changes a factor.
        if (!cfg.any_head_dim()) st.state.update(update).unroll(xo);

        keys_of_block(ch);
        if (ch.ranged) {
            one_block(st.row_range.compute_at(st.state, ch.block_loop()).store_in(MemoryType::Register))
                .bound_extent(st.row, rows);
        }
        auto per_logit = [&](Func &f) -> Func & {
            of_keys(f, ch).bound_extent(st.k, ch.block);
            return f.reorder_storage(st.k, st.row, st.rb, st.kb, st.t, st.sp)
                .reorder(st.k, st.row)
                .vectorize(st.k, lanes);
        };
        if (ch.biases.defined()) {
            per_logit(ch.biases);
            if (cfg.has_bias_16()) ch.biases.specialize(st.bias_on && st.bias_is_16);
            ch.biases.specialize(st.bias_on);
        }
        if (ch.visible.defined() && cfg.per_logit()) {
            per_logit(ch.visible);
            if (cfg.has_mask && ch.tested) ch.visible.specialize(st.mask_on);
        }
        if (cfg.has_dropout) {
            per_logit(ch.kept);
        }
        if (cfg.modifies_logits()) {
            per_logit(ch.logits);
            if (cfg.has_softcap) ch.logits.specialize(st.softcap_on);
        }
        of_keys(dot_consumer(ch), ch)
            .bound_extent(st.k, ch.block)
            .reorder_storage(st.k, st.row, st.rb, st.kb, st.t, st.sp)
            .split(st.k, ko, kt, lanes)
            .reorder(kt, st.row, st.rb, ko)
            .vectorize(kt)
            .unroll(st.row);
        dot_products(ch);

        // Some vectors at once: they are joined before their lanes are.
        of_keys(ch.block_max, ch).update().atomic().vectorize(ch.keys.x, std::gcd(ch.block, 4 * lanes));
        per_logit(ch.weights);
        if (cfg.has_kv_scales()) {
            per_logit(ch.value_weights);
        }
        of_keys(ch.decode.sum_lanes, ch).bound_extent(st.u, lanes).vectorize(st.u);
        ch.decode.sum_lanes.update().reorder(st.u, ch.decode.lane_keys, st.row).vectorize(st.u);
        values(ch);
    }

    Func &dot_consumer(BlockChain &ch) const { return cfg.modifies_logits() ? ch.raw_logits : ch.logits; }

    void dot_products(BlockChain &ch) {
        const int lanes = cfg.dot_lanes, rows = cfg.row_block, keys = cfg.key_tile;
        Func &dots = ch.decode.dots;
        dots.compute_at(dot_consumer(ch), ko).store_in(MemoryType::Register);
        (joins_blocks(ch) ? of_joined_blocks(dots) : one_block(dots).bound_extent(st.kb, 1))
            .bound_extent(st.u, lanes)
            .bound_extent(st.row, rows)
            .bound_extent(st.k, lanes)
            .split(st.k, ko, kt, keys)
            .split(st.u, tile, st.u, lanes)
            .reorder(st.u, st.row, kt, tile, ko, st.rb)
            .vectorize(st.u)
            .unroll(st.row)
            .unroll(kt);
        if (joins_blocks(ch)) dots.specialize(st.decode.reads_whole_keys).reorder(tile, st.rb, ko);
        one_block(ch.decode.dot_tile.compute_at(dots, tile).store_in(MemoryType::Register))
            .bound_extent(st.u, lanes)
            .bound_extent(st.row, rows)
            .bound_extent(st.k, keys)
            .bound_extent(st.kb, 1)
            .vectorize(st.u)
            .unroll(st.row)
            .unroll(st.k)
            .update()
            .vectorize(st.u)
            .unroll(st.row)
            .unroll(st.k);
        // Key after key: k streams through memory in order, which the prefetchers of the cache follow best
        // (measured: 1.9x on keys in L3). The sums of the next keys start while those of the last ones wait for their
        // FMAs.
        if (cfg.any_head_dim()) {
            ch.decode.dot_tile.update().reorder(st.u, st.row, st.k, ch.over_d);
        } else if (cfg.task_blocks > 1 && rows > 1) {
            ch.decode.dot_tile.update().reorder(st.u, st.row, st.k, ch.over_d).unroll(ch.over_d.x);
        } else {
            ch.decode.dot_tile.update().reorder(st.u, st.row, ch.over_d, st.k).unroll(ch.over_d.x);
        }
    }

    // The accumulators of a register tile stay there over value_keys keys; then the next tile works on the same keys,
    // so that reads of memory are spread over all of the arithmetic.
    void values(BlockChain &ch) {
        const int lanes = cfg.lanes, any = cfg.any_head_dim();
        int vectors = cfg.value_vectors;
        while ((cfg.padded(cfg.head_dim_v) / lanes) % vectors != 0) {
            vectors--;
        }
        RVar chunk("chunk"), key("key");
        Stage sums = along_d(any ? of_block_in_workspace(ch.value_tile, ch).bound_extent(st.row, cfg.row_block)
                                 : of_keys(ch.value_tile, ch),
                             st.d, cfg.head_dim_v)
                         .reorder_storage(st.d, st.row, st.rb, st.kb, st.t, st.sp)
                         .reorder(st.d, st.row)
                         .vectorize(st.d, lanes, TailStrategy::RoundUp)
                         .update();
        sums.split(st.row, ro, rt, cfg.value_rows)
            .split(st.d, db, dv, vectors * lanes, TailStrategy::RoundUp)
            .vectorize(dv, lanes)
            .unroll(dv)
            .unroll(rt);
        if (joins_blocks(ch)) {
            RVar visit("visit"), whole("whole");
            Stage of_whole = sums.specialize(st.decode.reads_whole_keys);
            of_whole.split(ch.numbers.x, visit, whole, cfg.whole_keys).reorder(dv, rt, whole, db, ro, st.rb, visit);
            if (!cfg.loops_over_visits()) of_whole.unroll(whole);
        }
        sums.split(ch.numbers.x, chunk, key, std::min(cfg.value_keys, ch.block))
            .reorder(dv, rt, key, db, ro, chunk, st.rb);
    }
};

}  // namespace

Passes schedule_attention_decode_x86(AttentionStages &stages, const AttentionConfig &config) {
    DecodeSchedule(stages, config).apply();
    return x86_attention_passes(stages, config);
}

}  // namespace heed
