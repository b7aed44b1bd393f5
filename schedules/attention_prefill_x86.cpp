// Prefill on x86. Query rows are the vector lanes: k and v are read as scalars that the FMA broadcasts, in place (of
// bf16 pairs of values are packed first, of k rows of any length), the
// softmax needs no horizontal reduction, and only q and the result are transposed, once per block of rows.
//
//   task = (block of rows, head, sequence), parallel; per block of keys:
//
//     logits^T [keys][rows] = k (scalars) x q^T (vectors)
//                             register tile: row_block rows x key_tile keys, over all of d
//
//     softmax                 lane-wise over the keys
//
//     out^T [d][rows]      += v (scalars) x weights^T (vectors)
//                             register tile: row_block rows x value_tile values of d, over the keys
//
// Rows and keys are computed as far as there are any: a step has a copy for each number of vectors of rows, and one
// whose keys some rows do not see ends after the last that some row sees (fit_rows.cpp, attention_passes.cpp).
// Measured, Zen 4, 2 cores, 8 heads of 64: 16 queries run at the FMA rate of 48, a third of it without the copies.
//
// Decode of large groups (wide_group): a row is a pair of a position and a head of the group, and a task has a split of
// the keys. Its state leaves the task; a second, small parallel loop merges the splits and writes the rows. Measured,
// Zen 4, 2 cores, one head of keys of 576 and values of 512 elements, 16 heads of queries: f32 0.8, bf16 0.7 of the
// peak of FMAs and dot products; by elements of a head as lanes 0.3 and 0.15. AVX2 (Zen 3): f32 0.6 and 0.3.
//
// With matrix tiles (AMX) each product is one stage of plain loops that LowerBf16Tiles replaces. It reads copies of the
// block: k, which then may be anywhere, and v transposed. In prefill they are made before all tasks, in decode of large
// groups in the step that multiplies them; there whole blocks of keys that are in a row are read where they are (Xeon
// with AMX, 4096 keys, 2 threads: 16 rows of 2 heads of 128 0.82 of the time of copies, of one head of 576 0.81).
// In prefill a task may have a part of the keys: queries and state stay where they are until the next one (add_parts()
// in matrix_tile_passes.cpp). Parts of 768 KiB for 30 blocks of rows instead of one, on a Xeon with AMX, 8 / 2 heads of
// 128: 16384 keys for 512 queries take 28 instead of 51 ms.
#include "schedules/attention_prefetches.h"
#include "schedules/logit_tensors_x86.h"
#include "schedules/packed_blocks_x86.h"
#include "schedules/task_schedule.h"
#include "schedules/transposed_tiles.h"

namespace heed {

using namespace Halide;

namespace {

class PrefillSchedule : TaskSchedule {
public:
    PrefillSchedule(AttentionStages &stages, const AttentionConfig &config)
        : TaskSchedule(stages, config,
                       config.wide_group ? LoopLevel(stages.decode.split_state, stages.task)
                                         : LoopLevel(stages.out, stages.results.y)),
          result_loop(stages.out, stages.results.y), packed(stages, config, task_loop),
          tensors(stages, config, task_loop) {}

    void apply() {
        outputs();
        if (cfg.wide_group) merge();
        queries();
        sweep();
        if (cfg.packs_first()) packed.first();
        for (size_t n = 0; n < st.chains.size(); n++) chain(*st.chains[n], static_cast<int>(n));
    }

private:
    const LoopLevel result_loop;  // where rows are written
    const Var result_ro{cfg.wide_group ? "result_ro" : "ro"};
    PackedBlocksSchedule packed;
    LogitTensorsSchedule tensors;

    // Where they are made of splits their loop is another one than that of a block of keys.
    Func &rows_of_result(Func &f) {
        return one_task(f)
            .bound_extent(st.row, cfg.row_block)
            .split(st.row, result_ro, rv, cfg.lanes)
            .partition(result_ro, Partition::Never)
            .vectorize(rv);
    }
    Func &of_result(Func &f, MemoryType memory) { return rows_of_result(f.compute_at(result_loop).store_in(memory)); }

    void outputs() {
        const int rows = cfg.row_block, lanes = cfg.lanes;
        if (!cfg.any_head_dim()) {
            st.out.bound(st.d, 0, cfg.head_dim_v);
        }
        const bool whole_lines = cfg.packs_kv() && !cfg.any_head_dim() && cfg.head_dim_v % (2 * lanes) == 0;
        // Each row of out belongs to one task: no race, though Halide cannot prove it.
        st.out.update()
            .allow_race_conditions()
            .reorder(st.d, st.results.x, st.results.y)
            .parallel(st.results.y)
            .partition(st.results.y, Partition::Never)
            .vectorize(st.d, whole_lines ? 2 * lanes : lanes, TailStrategy::GuardWithIf);
        of_result(st.row_result, MemoryType::Register);
        along_d(one_task(st.prefill.out_rows.compute_at(result_loop).store_in(MemoryType::Heap)), st.d, cfg.head_dim_v)
            .bound_extent(st.row, rows)
            .tile(st.d, st.row, db, result_ro, dv, rv, lanes, lanes, TailStrategy::RoundUp)
            .vectorize(dv)
            .unroll(rv);
        schedule_square(st.prefill.out_tiles, st.prefill.out_rows, db, cfg.lanes);
        along_d(in_workspace(st.state), st.x, cfg.head_dim_v, cfg.state_slots())
            .bound_extent(st.row, rows)
            .vectorize(st.row, lanes);
    }

    // The splits of the rows of a task are merged in a second, small parallel loop.
    void merge() {
        DecodeStages &merge = st.decode;
        one_task(merge.merged_fields.compute_at(result_loop).store_in(MemoryType::Register))
            .bound(st.d, 0, num_task_fields)
            .unroll(st.d);
        if (!cfg.any_head_dim()) {
            merge.split_state.bound(st.x, 0, cfg.state_slots() + cfg.padded(cfg.head_dim_v));
        }
        merge.split_state.compute_root()
            .bound(st.row, 0, cfg.row_block)
            .bound(st.task, 0, merge.num_split_tasks)
            .parallel(st.task)
            .partition(st.task, Partition::Never)
            .vectorize(st.row, cfg.lanes)
            .unroll(st.row);
        const auto over_splits = [&](Func &f, std::vector<VarOrRVar> loops) {
            loops.insert(loops.begin(), rv);
            f.update().split(st.row, result_ro, rv, cfg.lanes).reorder(loops).vectorize(rv);
        };
        over_splits(of_result(merge.split_max, MemoryType::Register), {result_ro, merge.over_splits.x});
        rows_of_result(merge.split_factor.compute_at(merge.merged, merge.over_splits.x).store_in(MemoryType::Register))
            .bound_extent(st.sp, 1);
        along_d(of_result(merge.merged, MemoryType::Heap), st.x, cfg.head_dim_v,
                cfg.state_slots() - AttentionStages::place(cfg, AttentionStages::row_sum));
        over_splits(merge.merged, {result_ro, st.x, merge.over_splits.x});
    }

    void queries() {
        const int rows = cfg.row_block, lanes = cfg.lanes;
        in_frame(st.fields).bound(st.d, 0, num_task_fields).unroll(st.d);
        in_frame(st.block_range);
        in_frame(st.row_range).bound_extent(st.row, rows).vectorize(st.row, lanes);
        if (cfg.pads_queries()) {
            const int elements =
                cfg.bf16_dots && !cfg.any_head_dim() ? 2 * cfg.padded(cfg.query_elements()) : cfg.head_dim;
            padded_rows(in_workspace(st.q_padded.rows), st.q_padded, elements).bound_extent(st.row, rows);
        }
        along_d(in_workspace(st.prefill.q_lanes), st.d, cfg.query_elements())
            .bound_extent(st.row, rows)
            .tile(st.row, st.d, ro, db, rv, dv, lanes, lanes, TailStrategy::RoundUp)
            .vectorize(rv)
            .unroll(dv);
        schedule_square(st.prefill.q_tiles, st.prefill.q_lanes, ro, cfg.lanes);
    }

    void chain(BlockChain &ch, int update) {
        RVar slot = ch.steps.x, step = ch.steps.y;
        st.state.update(update)
            .split(st.row, ro, rv, cfg.lanes)
            .reorder(rv, ro, slot, step)
            .partition(step, Partition::Never)
            .vectorize(rv)
            .unroll(ro);

        keys_of_block(ch);
        if (cfg.packs_in_steps()) packed.in_step(ch);
        if (ch.biases.defined()) tensors.biases(ch);
        if (ch.prefill.mask_rows.defined()) {
            tensors.masks(ch);
        } else if (ch.visible.defined() && cfg.per_logit()) {
            per_logit(ch.visible, ch);
        }
        if (cfg.has_dropout) per_logit(ch.kept, ch);
        if (cfg.packs_kv()) {
            sums_of_tiles(ch);
        } else {
            by_rows(ch.block_max, ch, {ch.keys.x});
            by_rows(ch.block_sum, ch, {ch.keys.x});
            if (!cfg.has_raw_logits() && !ch.ranged) {  // by tiles of logits, see FuseLoops
                RVar tile("tile"), key("key");
                ch.block_max.update().split(ch.keys.x, tile, key, cfg.key_tile).unroll(key);
            }
            // AVX2: LLVM spills one of the sums, which takes 12 cycles a key, 4 % of the time of heads of 64 (Zen 3).
            if (cfg.lanes == 8 && !ch.ranged) ch.block_sum.update().unroll(ch.keys.x, 4);
        }
        of_block_rows(ch.prefill.reference, ch).vectorize(st.row, cfg.lanes).unroll(st.row);
        weights(ch);
        if (!ch.as_is && (cfg.modifies_logits() || (cfg.packs_kv() && cfg.per_logit()))) {
            per_logit(ch.logits, ch);
            // What depends on the row alone then leaves the loop over the keys.
            if (cfg.has_softcap || ch.added) ch.logits.unroll(st.row);
            if (cfg.has_softcap && !ch.added) ch.logits.specialize(st.softcap_on);
            if (cfg.packs_kv() && !ch.added && ch.biases.defined()) ch.logits.specialize(!st.bias_on);
        }
        if (cfg.bf16_tiles) {
            matrix_tiles(ch.product, ch).bound_extent(st.k, ch.block);
            if (ch.ranged) ch.product.update().split(st.k, ko, kt, packed_unit, TailStrategy::RoundUp);
            along_d(matrix_tiles(ch.block_out, ch), st.d, cfg.head_dim_v);
            if (cfg.any_head_dim()) ch.block_out.update().split(st.d, db, dv, packed_unit, TailStrategy::RoundUp);
        } else {
            register_tiles(ch);
        }
        values(ch);
    }

    // In whole vectors, where a score function reads clamped elements too.
    Func &per_logit(Func &f, const BlockChain &ch) {
        return of_block_rows(f, ch)
            .bound_extent(st.k, ch.block)
            .vectorize(st.row, cfg.lanes)
            .partition(st.row, loops_over_logits())
            .partition(st.k, loops_over_logits());
    }

    void by_rows(Func &f, const BlockChain &ch, std::vector<VarOrRVar> loops) {
        of_block_rows(f, ch).vectorize(st.row, cfg.lanes).unroll(st.row);
        loops.insert(loops.begin(), st.row);
        f.update().reorder(loops).vectorize(st.row, cfg.lanes).unroll(st.row);
    }

    // Maxima and sums of packed keys, and what is made again of a row whose reference does not hold.
    void sums_of_tiles(BlockChain &ch) {
        const int lanes = cfg.lanes;
        Bf16Block &of = ch.bf16;
        by_rows(of.max_parts, ch, {st.x, of.part_keys.x});
        by_rows(of.sum_parts, ch, {st.x, of.pairs.x});
        for (Func *parts : {&of.max_parts, &of.sum_parts}) {
            parts->bound_extent(st.x, Bf16Block::parts).unroll(st.x).update().unroll(st.x);
        }
        by_rows(of.exact_sum, ch, {of.exact.x});
        of.exact_sum.update(1)
            .reorder(st.row, of.exact_again.x)
            .partition(of.exact_again.x, Partition::Never)
            .vectorize(st.row, lanes)
            .unroll(st.row);
        of_block(of.again_end, ch);
        of_block(of.reference_sizes, ch)
            .bound_extent(st.u, lanes)
            .vectorize(st.u, lanes)
            .update()
            .vectorize(st.u, lanes)
            .unroll(of.sized_rows.x);
        of_block_rows(ch.block_sum, ch).vectorize(st.row, lanes).unroll(st.row);
    }

    void weights(BlockChain &ch) {
        if (cfg.packs_kv()) {
            Func &pairs = ch.bf16.weight_pairs;
            of_block_rows(pairs, ch).bound_extent(st.k, ch.block / 2).vectorize(st.row, cfg.lanes).unroll(st.row);
            pairs.update()
                .reorder(st.row, ch.bf16.again.x)
                .partition(ch.bf16.again.x, Partition::Never)
                .vectorize(st.row, cfg.lanes)
                .unroll(st.row);
        } else {
            per_logit(ch.weights, ch).unroll(st.row);
        }
        if (cfg.has_kv_scales()) per_logit(ch.value_weights, ch).unroll(st.row);
    }

    // Both products, with rows as lanes.
    void register_tiles(BlockChain &ch) {
        const int lanes = cfg.lanes, tile = cfg.key_tile;
        Func &tiles_of_keys = cfg.has_raw_logits() ? ch.raw_logits : ch.logits;
        of_block_rows(tiles_of_keys, ch)
            .bound_extent(st.k, ch.block)
            .split(st.k, ko, kt, tile)
            .reorder(st.row, kt, ko)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .unroll(kt);
        register_tile(ch.product.compute_at(tiles_of_keys, ko), ch.over_d, st.k, tile, cfg.product_unroll);
        if (&ch == &st.full && product_bursts(cfg) > 0) {
            RVar outer("outer"), burst("burst"), part("part");
            ch.product.update().split(outer, burst, part,
                                      cfg.query_elements() / cfg.product_unroll / product_bursts(cfg));
        }
        Func &out = along_d(of_block_in_workspace(ch.block_out, ch), st.d, cfg.head_dim_v);
        out.bound_extent(st.row, cfg.row_block)
            .vectorize(st.row, lanes)
            .update()
            .split(st.d, db, dv, cfg.value_tile, TailStrategy::RoundUp)
            .reorder(st.row, dv, db)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .unroll(dv);
    }

    Func &matrix_tiles(Func &f, const BlockChain &ch) {
        f.update().unscheduled();
        return of_block_in_workspace(f, ch).bound_extent(st.row, cfg.row_block);
    }

    void values(BlockChain &ch) {
        const bool splits_loop = ch.prefill.nonfinite_end.defined();
        const bool has_own_sums = !cfg.bf16_tiles;
        Func &sum = has_own_sums ? ch.prefill.value_sums : ch.block_out;
        if (cfg.bf16_tiles) {
            if (splits_loop) {
                of_block_in_workspace(ch.bf16.v_numbers, ch)
                    .bound_extent(st.p, cfg.lanes)
                    .bound_extent(st.c, ch.block / packed_unit)
                    .partition(st.c, Partition::Never)
                    .vectorize(st.p);
                along_d(ch.bf16.v_numbers, st.d, cfg.head_dim_v);
            }
        } else {
            // Two steps at once keep LLVM from folding a test of each product into it, as a masked FMA or as no FMA.
            const bool tests = ch.tested || cfg.has_dropout;
            register_tile(ch.value_tile.compute_at(ch.block_out, db), ch.numbers, st.d, cfg.value_tile,
                          splits_loop || ch.ranged || !tests ? 1 : cfg.value_unroll);
        }
        if (!splits_loop) return;
        of_block(ch.prefill.nonfinite_end, ch);
        if (ch.prefill.number_end.defined()) of_block(ch.prefill.number_end, ch);
        const auto by_lanes = [&](Func &f, const RDom &over, bool unrolls) {
            of_block(f, ch).bound_extent(st.u, cfg.lanes).vectorize(st.u, cfg.lanes);
            f.update().reorder(st.u, over.x, over.y).vectorize(st.u, cfg.lanes);
            if (unrolls) f.update().unroll(over.x);
        };
        if (ch.prefill.all_seen.defined()) by_lanes(ch.prefill.all_seen, ch.prefill.places, true);
        if (ch.prefill.exponents.defined()) by_lanes(ch.prefill.exponents, ch.prefill.values, !cfg.any_head_dim());
        const int last = sum.num_update_definitions() - 1;
        sum.update(last)
            .reorder(st.row, st.d, ch.prefill.nonfinites)
            .partition(ch.prefill.nonfinites, Partition::Never)
            .vectorize(st.row, cfg.lanes)
            .unroll(st.row);
        if (!has_own_sums) return;
        const RVar once = ch.prefill.with_sums.x;
        along_d(one_task(sum.compute_at(ch.block_out, once).hoist_storage(task_loop).store_in(MemoryType::Heap)), st.d,
                cfg.head_dim_v)
            .bound_extent(st.kb, 1)
            .bound_extent(st.row, cfg.row_block)
            .vectorize(st.row, cfg.lanes)
            .unroll(st.row);
        ch.block_out.update(1).reorder(st.row, st.d, once).vectorize(st.row, cfg.lanes).unroll(st.row);
    }

    // row_block rows x `tile` of `other` stay in registers over the whole of `over`; the consumer then copies them.
    void register_tile(Func &f, const RDom &over, const Var &other, int tile, int unroll) {
        const int lanes = cfg.lanes;
        RVar inner("inner"), outer("outer");
        one_task(f)
            .hoist_storage(task_loop)
            .store_in(MemoryType::Register)
            .bound_extent(st.kb, 1)
            .bound_extent(st.row, cfg.row_block)
            .bound_extent(other, tile);
        f.vectorize(st.row, lanes).unroll(st.row).unroll(other);
        std::vector<VarOrRVar> loops{st.row, other, inner, outer};
        if (over.dimensions() > 1) loops.emplace_back(over.y);
        f.update()
            .split(over.x, outer, inner, unroll)
            .reorder(loops)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .unroll(other)
            .unroll(inner);
    }
};

}  // namespace

Passes schedule_attention_prefill_x86(AttentionStages &stages, const AttentionConfig &config) {
    PrefillSchedule(stages, config).apply();
    return x86_attention_passes(stages, config);
}

}  // namespace heed
