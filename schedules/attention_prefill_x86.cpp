// Prefill on x86. Query rows are the vector lanes: k and v are read in place as scalars that the FMA broadcasts, the
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
// whose keys some rows do not see ends after the last that some row sees (attention_passes.cpp). Measured, Zen 4, 2
// cores, 8 heads of 64: 16 queries run at the FMA rate of 48, a third of it without the copies.
//
// Decode of large groups (wide_group): a row is a pair of a position and a head of the group, and a task has a split of
// the keys. Its state leaves the task; a second, small parallel loop merges the splits and writes the rows. Measured,
// Zen 4, 2 cores, one head of keys of 576 and values of 512 elements, 16 heads of queries: f32 0.8, bf16 0.7 of the
// peak of FMAs and dot products; by elements of a head as lanes 0.3 and 0.15. AVX2 (Zen 3): f32 0.6 and 0.3.
//
// With matrix tiles (AMX) each product is one stage of plain loops that LowerBf16Tiles replaces. It reads copies of the
// block: k, which then may be anywhere, and v transposed. In prefill they are made before all tasks, in decode of large
// groups in the step that multiplies them.
// In prefill a task may have a part of the keys: queries and state stay where they are until the next one (add_parts()
// in attention_passes.cpp). Parts of 768 KiB for 30 blocks of rows instead of one, on a Xeon with AMX, 8 / 2 heads of
// 128: 16384 keys for 512 queries take 28 instead of 51 ms.
#include "schedules/attention_prefetches.h"
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
          result_loop(stages.out, stages.results.y) {}

    void apply() {
        outputs();
        if (cfg.wide_group) merge();
        queries();
        sweep();
        if (cfg.packs_first()) packed_first();
        for (size_t n = 0; n < st.chains.size(); n++) chain(*st.chains[n], static_cast<int>(n));
    }

private:
    Var rv{"rv"}, ro{"ro"}, dv{"dv"}, db{"db"}, kt{"kt"}, ko{"ko"};

    const LoopLevel result_loop;  // where rows are written
    const Var result_ro{cfg.wide_group ? "result_ro" : "ro"};

    // Where they are made of splits their loop is another one than that of a block of keys.
    Func &rows_of_result(Func &f) {
        return one_task(f)
            .bound_extent(st.row, cfg.row_block)
            .split(st.row, result_ro, rv, cfg.lanes)
            .partition(result_ro, Partition::Never)
            .vectorize(rv);
    }
    Func &of_result(Func &f, MemoryType memory) { return rows_of_result(f.compute_at(result_loop).store_in(memory)); }
    Func &of_block_rows(Func &f, const BlockChain &ch) { return of_block(f, ch).bound_extent(st.row, cfg.row_block); }

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

    // Blocks of all heads are the tasks.
    void packed_first() {
        PackedBlocks &p = st.packed;
        const Var task("packed_task");
        auto by_task = [&](Func &f) -> Func & {
            return f.compute_root()
                .bound(p.block, 0, p.num_blocks)
                .bound(p.head, 0, p.num_heads)
                .fuse(p.head, p.block, task)
                .parallel(task);
        };
        by_task(p.k);
        if (p.over_d.defined()) p.k.update().fuse(p.head, p.block, task).parallel(task);
        by_task(p.v);
        by_task(p.nonfinite);
        packed_blocks(p, {task});
        const auto of_one_block = [&](Func &f) { f.bound_extent(p.block, 1).bound_extent(p.head, 1); };
        of_one_block(p.exponents.compute_at(p.nonfinite, task));
        if (cfg.any_head_dim()) of_one_block(p.v_rows.rows.hoist_storage(p.v, task));
        const std::pair<Func, Func> slots[] = {{p.k_slots, p.k}, {p.v_slots, p.v}};
        for (auto [of_keys, consumer] : slots) {
            if (!of_keys.defined()) continue;
            of_keys.compute_at(consumer, task)
                .store_in(MemoryType::Register)
                .bound_extent(st.k, cfg.kv_block)
                .vectorize(st.k, cfg.lanes);
        }
    }

    void packed_in_step(BlockChain &ch) {
        PackedBlocks &p = ch.packed;
        of_block_in_workspace(p.k, ch);
        of_block_in_workspace(p.v, ch);
        packed_blocks(p, {});
        if (cfg.any_head_dim()) {
            p.k.bound_storage(st.c, max_head_dim / packed_unit);
            p.v.bound_storage(st.d, max_head_dim);
            one_block(p.v_rows.rows.hoist_storage(task_loop)).bound_extent(st.kb, 1);
        }
        if (!ch.ranged) return;
        of_block(p.nonfinite, ch);
        of_block(p.exponents, ch);
    }

    // In each iteration of the loops `outer`, those over blocks.
    void packed_blocks(PackedBlocks &p, const std::vector<VarOrRVar> &outer) {
        const auto within = [&](Stage stage, std::vector<VarOrRVar> loops) {
            loops.insert(loops.end(), outer.begin(), outer.end());
            return stage.reorder(loops);
        };
        p.k.bound(st.e, 0, 2 * cfg.lanes).bound(st.k, 0, cfg.kv_block).bound(st.c, 0, p.chunks);
        within(p.k, {st.e, st.c, st.k}).vectorize(st.e);
        if (!cfg.any_head_dim()) p.k.unroll(st.c);
        if (p.over_d.defined()) {
            within(p.k.update().allow_race_conditions(), {p.over_d.x, st.k})  // each element of a row is its own
                .vectorize(p.over_d.x, cfg.any_head_dim() ? 8 : cfg.lanes, TailStrategy::GuardWithIf);
        }
        p.v.bound(st.p, 0, cfg.lanes)
            .bound(st.d, 0, p.values)
            .bound(st.c, 0, cfg.kv_block / (2 * cfg.lanes))
            .split(st.d, db, dv, cfg.packs_words() ? 2 * cfg.lanes : cfg.lanes);
        within(p.v, {st.p, dv, db, st.c}).vectorize(st.p).unroll(dv);
        for (TransposedTiles &tiles : p.v_tiles) schedule_square(tiles, p.v, db, cfg.lanes);
        if (cfg.any_head_dim()) {
            padded_bits(p.v_rows.rows.compute_at(p.v, st.c).store_in(MemoryType::Heap), p.v_rows);
        }
        p.exponents.store_in(MemoryType::Register)
            .bound_extent(st.u, cfg.lanes)
            .vectorize(st.u)
            .update()
            .reorder(st.u, p.over_v.x, p.over_v.y)
            .vectorize(st.u);
    }

    // Whole ones, to trim and shorten, where Halide would take apart how a score function reads its clamped elements.
    Partition loops_over_logits() const { return cfg.has_score_mod() ? Partition::Never : Partition::Auto; }

    // Vectors of rows of `keys` keys.
    Func &by_tiles(Func &f, int keys, const BlockChain &ch) {
        return of_block_rows(f, ch)
            .bound_extent(st.k, ch.block)
            .tile(st.row, st.k, ro, ko, rv, kt, cfg.lanes, keys, TailStrategy::RoundUp)
            .reorder(rv, kt, ko, ro)
            .vectorize(rv)
            .partition(ro, loops_over_logits())
            .partition(ko, loops_over_logits());
    }

    // A square of words has four times as many keys as one of bytes.
    void masks(BlockChain &ch) {
        PrefillBlock &of = ch.prefill;
        Func &rows = of.mask_rows;
        if (!cfg.reads_mask_words()) {
            by_squares(ch.visible, of.mask_tiles, rows, ch);
            read_dense(ch.visible, rows, ch, st.mask_on, st.prefill.mask_dense);
            return;
        }
        by_tiles(ch.visible, 4 * cfg.lanes, ch).unroll(kt).specialize(st.mask_on);
        schedule_square(of.mask_tiles, ch.visible, ko, cfg.lanes);
        one_task(rows.compute_at(ch.visible, ro).store_in(MemoryType::Register))
            .bound_extent(st.kb, 1)
            .bound_extent(st.row, cfg.lanes);
        // Each key of a row is its own: no race.
        rows.update(0)
            .allow_race_conditions()
            .reorder(of.mask_lines.x, of.mask_lines.y, st.row)
            .vectorize(of.mask_lines.x)
            .unroll(of.mask_lines.y);
        rows.update(1).reorder(of.mask_keys, st.row).vectorize(of.mask_keys, cfg.lanes);
    }

    // Squares that are transposed in a loop over the keys of f: of whole blocks read where they are, of others, whose
    // keys may end within a vector, from rows that are copied before.
    void squares(Func &f, TransposedTiles &tiles, const Var &loop, Func &rows, const BlockChain &ch) {
        schedule_square(tiles, f, loop, cfg.lanes);
        one_task(rows.compute_at(f, ch.ranged ? ro : loop).store_in(MemoryType::Register))
            .bound_extent(st.kb, 1)
            .bound_extent(st.row, cfg.lanes)
            .bound_extent(st.k, ch.ranged ? ch.block : cfg.lanes)
            .vectorize(st.k, cfg.lanes);
    }

    void by_squares(Func &f, TransposedTiles &tiles, Func &rows, const BlockChain &ch) {
        by_tiles(f, cfg.lanes, ch).unroll(kt);
        squares(f, tiles, ko, rows, ch);
    }

    // Two squares side by side: a dense bias of bf16 is transposed as one square of words, any other one square after
    // the other.
    void by_pairs(BlockChain &ch) {
        const Var ki("ki");
        by_tiles(ch.biases, 2 * cfg.lanes, ch).split(kt, ki, kt, cfg.lanes).unroll(kt);
        ch.biases.specialize(st.bias_on).specialize(st.prefill.reads_dense_16).unroll(ki);
        schedule_square(ch.prefill.bias_pairs, ch.biases, ko, cfg.lanes);
        squares(ch.biases, ch.prefill.bias_tiles, ki, ch.prefill.bias_rows, ch);
    }

    void biases(BlockChain &ch) {
        Func &rows = ch.prefill.bias_rows;
        if (ch.prefill.reads_bias_pairs()) {
            by_pairs(ch);
        } else {
            by_squares(ch.biases, ch.prefill.bias_tiles, rows, ch);
            const Expr dense = cfg.has_bias_16() ? st.prefill.reads_dense_16 : st.prefill.bias_dense;
            read_dense(ch.biases, rows, ch, st.bias_on, dense);
        }
        if (!cfg.has_bias_16()) return;
        rows.specialize(st.bias_is_16);
        rows.specialize(st.prefill.bias_dense);
    }

    // Where keys are neighbours in memory, rows of a square that is read in place are registers.
    void read_dense(Func &f, Func &rows, const BlockChain &ch, const Expr &on, const Expr &dense) {
        Stage reads = f.specialize(on);
        if (!ch.ranged) reads.specialize(dense);
        Stage of_neighbours = rows.specialize(dense);
        if (!ch.ranged) of_neighbours.unroll(st.row);
    }

    void chain(BlockChain &ch, int update) {
        const int lanes = cfg.lanes, tile = cfg.key_tile;
        RVar slot = ch.steps.x, step = ch.steps.y;
        st.state.update(update)
            .split(st.row, ro, rv, lanes)
            .reorder(rv, ro, slot, step)
            .partition(step, Partition::Never)
            .vectorize(rv)
            .unroll(ro);

        keys_of_block(ch);
        if (cfg.packs_in_steps()) packed_in_step(ch);
        auto per_logit =
            [&](Func &f) -> Func & {  // in whole vectors, where a score function reads clamped elements too
            return of_block_rows(f, ch)
                .bound_extent(st.k, ch.block)
                .vectorize(st.row, lanes)
                .partition(st.row, loops_over_logits())
                .partition(st.k, loops_over_logits());
        };
        if (ch.biases.defined()) {
            biases(ch);
        }
        if (ch.prefill.mask_rows.defined()) {
            masks(ch);
        } else if (ch.visible.defined() && cfg.per_logit()) {
            per_logit(ch.visible);
        }
        if (cfg.has_dropout) {
            per_logit(ch.kept);
        }
        auto by_rows = [&](Func &f, std::vector<VarOrRVar> loops) {
            of_block_rows(f, ch).vectorize(st.row, lanes).unroll(st.row);
            loops.insert(loops.begin(), st.row);
            f.update().reorder(loops).vectorize(st.row, lanes).unroll(st.row);
        };
        if (cfg.packs_kv()) {
            by_rows(ch.bf16.max_parts, {st.x, ch.bf16.part_keys.x});
            by_rows(ch.bf16.sum_parts, {st.x, ch.bf16.pairs.x});
            for (Func *parts : {&ch.bf16.max_parts, &ch.bf16.sum_parts}) {
                parts->bound_extent(st.x, Bf16Block::parts).unroll(st.x).update().unroll(st.x);
            }
            by_rows(ch.bf16.exact_sum, {ch.bf16.exact.x});
            ch.bf16.exact_sum.update(1)
                .reorder(st.row, ch.bf16.exact_again.x)
                .partition(ch.bf16.exact_again.x, Partition::Never)
                .vectorize(st.row, lanes)
                .unroll(st.row);
            of_block(ch.bf16.again_end, ch);
            of_block(ch.bf16.reference_sizes, ch)
                .bound_extent(st.u, lanes)
                .vectorize(st.u, lanes)
                .update()
                .vectorize(st.u, lanes)
                .unroll(ch.bf16.sized_rows.x);
            for (Func *f : {&ch.bf16.reference, &ch.block_sum}) {
                of_block_rows(*f, ch).vectorize(st.row, lanes).unroll(st.row);
            }
        } else {
            by_rows(ch.block_max, {ch.keys.x});
            by_rows(ch.block_sum, {cfg.bf16_dots ? ch.bf16.pairs.x : ch.keys.x});
            // AVX2: LLVM spills one of the sums, which takes 12 cycles a key, 4 % of the time of heads of 64 (Zen 3).
            if (cfg.lanes == 8 && !cfg.bf16_dots && !ch.ranged) ch.block_sum.update().unroll(ch.keys.x, 4);
        }
        if (cfg.bf16_dots) {
            of_block_rows(ch.bf16.weight_pairs, ch)
                .bound_extent(st.k, ch.block / 2)
                .vectorize(st.row, lanes)
                .unroll(st.row);
            if (cfg.packs_kv()) {
                ch.bf16.weight_pairs.update()
                    .reorder(st.row, ch.bf16.again.x)
                    .partition(ch.bf16.again.x, Partition::Never)
                    .vectorize(st.row, lanes)
                    .unroll(st.row);
            }
        } else {
            per_logit(ch.weights).unroll(st.row);
        }
        if (cfg.has_kv_scales()) {
            per_logit(ch.value_weights).unroll(st.row);
        }
        if (!ch.as_is && (cfg.modifies_logits() || (cfg.bf16_dots && cfg.per_logit()))) {
            per_logit(ch.logits);
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
            values(ch);
            return;
        }
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
        along_d(of_block_in_workspace(ch.block_out, ch), st.d, cfg.head_dim_v)
            .bound_extent(st.row, cfg.row_block)
            .split(st.d, db, dv, cfg.value_tile, TailStrategy::RoundUp)
            .reorder(st.row, dv, db)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .unroll(dv);
        values(ch);
    }

    Func &matrix_tiles(Func &f, const BlockChain &ch) {
        f.update().unscheduled();
        return of_block_in_workspace(f, ch).bound_extent(st.row, cfg.row_block);
    }

    void values(BlockChain &ch) {
        const bool splits_loop = ch.prefill.nonfinite_end.defined();
        const bool in_tile = cfg.rounds_weights() && !cfg.packs_kv();
        Func &sum = in_tile ? ch.value_tile : ch.block_out;
        if (cfg.packs_kv()) {
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
        if (cfg.bf16_dots && !cfg.bf16_tiles) {
            const int vector = cfg.head_dim_v % (2 * cfg.lanes) == 0 && !cfg.any_head_dim() ? 4 : 2;
            Func &pairs = of_block_in_workspace(ch.bf16.v_pairs, ch).bound_extent(st.k, ch.block / 2);
            pairs.vectorize(st.e, vector * cfg.lanes, TailStrategy::RoundUp);
            if (cfg.any_head_dim()) {
                pairs.bound_storage(st.e, 2 * cfg.padded(0));
            } else {
                pairs.bound_extent(st.e, 2 * cfg.head_dim_v).unroll(st.e);
            }
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
        if (in_tile) sum.update(last).unroll(st.d);
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
        f.update()
            .split(over.x, outer, inner, unroll)
            .reorder(st.row, other, inner, outer)
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
