#pragma once
// What the x86 schedules share: scratch of one task, the parallel unit of work, inside its loop `task_loop`.

#include <algorithm>

#include "schedules/schedules.h"

namespace heed {

class TaskSchedule {
public:
    TaskSchedule(AttentionStages &stages, const AttentionConfig &config, const Halide::LoopLevel &task_loop)
        : st(stages), cfg(config), task_loop(task_loop) {}

protected:
    AttentionStages &st;
    const AttentionConfig &cfg;
    const Halide::LoopLevel task_loop;
    // Loops over rows, elements of a head and keys, split: the passes know them by these names.
    const Halide::Var rv{"rv"}, ro{"ro"}, dv{"dv"}, db{"db"}, kt{"kt"}, ko{"ko"};

    // Loops over logits stay whole, to trim and shorten, where Halide would take apart how a score function reads its
    // clamped elements.
    Halide::Partition loops_over_logits() const {
        return cfg.has_score_mod() ? Halide::Partition::Never : Halide::Partition::Auto;
    }

    // All coordinates of the task have one value.
    Halide::Func &one_task(Halide::Func &f) {
        for (const Halide::Var &v : {st.t, st.sp}) {
            for (const Halide::Var &arg : f.args()) {
                if (arg.name() == v.name()) f.bound_extent(v, 1);
            }
        }
        return f;
    }

    // Neither has more than one block of rows.
    Halide::Func &one_block(Halide::Func &f) {
        for (const Halide::Var &arg : f.args()) {
            if (arg.name() == st.rb.name()) f.bound_extent(st.rb, 1);
        }
        return one_task(f);
    }

    // For a block of keys, the same for all blocks of rows.
    Halide::Func &of_step(Halide::Func &f, const BlockChain &ch) {
        f.compute_at(st.state, ch.steps.y).store_in(Halide::MemoryType::Register);
        return one_task(f).bound_extent(st.kb, 1);
    }

    // Small or hot: in the stack frame. What would make the frame large: in the workspace, through halide_malloc once
    // per task.
    Halide::Func &in_frame(Halide::Func &f) { return in_task(f, Halide::MemoryType::Register); }
    Halide::Func &in_workspace(Halide::Func &f) { return in_task(f, Halide::MemoryType::Heap); }

    Halide::Func &of_block(Halide::Func &f, const BlockChain &ch) {
        f.compute_at(st.state, ch.block_loop()).store_in(Halide::MemoryType::Register);
        return one_block(f).bound_extent(st.kb, 1);
    }

    // The same where it would make the frame large.
    Halide::Func &of_block_in_workspace(Halide::Func &f, const BlockChain &ch) {
        return of_block(f, ch).hoist_storage(task_loop).store_in(Halide::MemoryType::Heap);
    }

    Halide::Func &of_block_rows(Halide::Func &f, const BlockChain &ch) {
        return of_block(f, ch).bound_extent(st.row, cfg.row_block);
    }

    // Elements of a head, known now or bounded. A vector more: 640 floats a row are 40 lines of a cache, and the rows
    // of a block would share 8 of its 64 sets; zeros after whole vectors would begin there.
    Halide::Func &along_d(Halide::Func &f, const Halide::Var &d, int length, int before = 0) {
        return cfg.any_head_dim() ? f.bound_storage(d, before + cfg.padded(length) + cfg.padded_unit())
                                  : f.bound_extent(d, before + cfg.padded(length));
    }

    Halide::Func &padded_rows(Halide::Func &f, PaddedRows &rows, int length) {
        along_d(f, st.d, length).vectorize(st.d, cfg.lanes, Halide::TailStrategy::RoundUp);
        if (rows.over_d.defined()) {
            f.update(0).vectorize(rows.zeros.x, cfg.lanes);
            f.update(1).vectorize(rows.over_d.x, cfg.lanes, Halide::TailStrategy::Predicate);
        }
        return f;
    }

    // What rows see of their keys: of each task, or of each line of swept_tasks, then at root.
    void sweep() {
        if (!cfg.sweeps()) return;
        MaskSweep &sweep = st.sweep;
        const bool of_lines = cfg.rows_are_lanes();
        const Halide::LoopLevel level = of_lines ? Halide::LoopLevel(sweep.results, st.t) : task_loop;
        const auto in_line = [&](Halide::Func &f) -> Halide::Func & { return one_value(f, level); };
        if (of_lines) {
            sweep.results.compute_root().bound(st.t, 0, st.num_swept).reorder(st.e, st.sp, st.t).parallel(st.t);
            in_line(sweep.fields).bound(st.d, 0, num_task_fields).unroll(st.d);
            classes();
        } else {
            in_line(sweep.results);
        }
        sweep.results.bound(st.e, 0, MaskSweep::num_results).unroll(st.e);
        if (sweep.bias_read.defined()) in_line(sweep.bias_read);
        in_line(sweep.seen_range);
        in_line(sweep.num_chunks);
        in_line(sweep.ends).bound_extent(st.e, MaskSweep::num_ends).unroll(st.e);
        sweep.ends.update().atomic().vectorize(sweep.over_u, cfg.swept_keys()).unroll(st.e);
        in_line(sweep.as_is_keys).update().atomic().vectorize(sweep.over_u, cfg.swept_keys());
        vector_of_keys(in_line(sweep.lane_ends))
            .bound_extent(st.e, MaskSweep::as_is_count + 1)
            .unroll(st.e)
            .update()
            .reorder(st.u, st.e, sweep.chunks)
            .unroll(st.e)
            .partition(sweep.chunks, Halide::Partition::Never)
            .vectorize(st.u, cfg.swept_keys());
        const Halide::LoopLevel chunk(sweep.lane_ends, sweep.chunks);
        sights(sweep.sights, [&](Halide::Func &f) { one_value(f, chunk).bound_extent(st.kb, 1); });
    }

    void classes() {
        MaskSweep &sweep = st.sweep;
        const Halide::LoopLevel line(sweep.classes, st.t), step(sweep.classes, sweep.steps.x);
        sweep.classes.compute_root()
            .bound(st.t, 0, st.num_swept)
            .update()
            .reorder(sweep.steps.x, st.sp, st.t)
            .partition(sweep.steps.x, Halide::Partition::Never)
            .parallel(st.t);
        if (cfg.has_as_is_steps()) sweep.classes.update(1).reorder(sweep.all_steps.x, st.sp, st.t).parallel(st.t);
        one_value(sweep.class_fields, line).bound(st.d, 0, num_task_fields).unroll(st.d);
        one_value(sweep.block_range, line);
        class_of_block(sweep.block, [&](Halide::Func &f) { one_value(f, step).bound_extent(st.kb, 1); });
    }

    template <typename Place>
    void class_of_block(BlockSights &block, const Place &place) {
        if (!block.some_seen.defined()) return;
        sights(block.keys, place);
        for (Halide::Func *f : {&block.some_seen, &block.all_as_is}) {
            place(*f);
            f->update().atomic().vectorize(st.sweep.over_u, cfg.swept_keys());
        }
    }

    // Copies of k and v, and where the keys of a block are.
    void keys_of_block(BlockChain &ch) {
        class_of_block(ch.sights, [&](Halide::Func &f) { of_step(f, ch); });
        of_step(ch.first_key, ch);
        if (ch.slots.defined()) {
            const bool asks = cfg.looks_up_ahead() && !ch.ranged;
            const int of_heads = cfg.whole_keys > 0 ? AttentionConfig::whole_keys_ahead : 0;
            const int ahead = asks ? std::max(cfg.prefetch_keys, of_heads) : 0;
            const int looked_up = ch.block + (ahead + cfg.lanes - 1) / cfg.lanes * cfg.lanes;
            Halide::Func &slots = of_step(ch.slots, ch).bound_extent(st.k, looked_up);
            slots.vectorize(st.k, cfg.lanes);
            if (cfg.rows_are_lanes()) slots.partition(st.k, Halide::Partition::Never);  // a loop to shorten
            slots.specialize(st.in_place);
        }
        if (cfg.copies_k()) padded_block(ch.k_rows, ch, cfg.head_dim);
        if (cfg.copies_v()) padded_block(ch.v_rows, ch, cfg.head_dim_v);
    }

    void padded_block(PaddedRows &rows, const BlockChain &ch, int length) {
        padded_rows(of_block_in_workspace(rows.rows, ch).bound_extent(st.k, ch.block), rows, length);
    }

    // Zeros in a whole register, elements by chunks of 16 bytes: rows of most models are whole ones.
    Halide::Func &padded_bits(Halide::Func &f, PaddedRows &rows) {
        along_d(f, st.d, 0)
            .vectorize(st.d, 2 * cfg.lanes, Halide::TailStrategy::RoundUp)
            .update(0)
            .vectorize(rows.zeros.x, 2 * cfg.lanes);
        f.update(1).vectorize(rows.over_d.x, 8, Halide::TailStrategy::GuardWithIf);
        return f;
    }

private:
    Halide::Func &vector_of_keys(Halide::Func &f) {
        return f.bound_extent(st.u, cfg.swept_keys()).vectorize(st.u, cfg.swept_keys());
    }

    // Only elements that are neighbours are read.
    template <typename Place>
    void sights(KeySights &sights, const Place &place) {
        for (KeySights::Source *source : sights.defined()) {
            place(source->words);
            vector_of_keys(one_task(source->words));
            const Halide::Expr dense = source == &sights.mask   ? st.prefill.mask_dense
                                       : source == &sights.bias ? st.prefill.bias_dense
                                                                : st.prefill.bias_16_dense;
            source->words.update()
                .reorder(st.u, source->over.x, source->over.y)
                .specialize(dense)
                .vectorize(st.u, cfg.swept_keys());
        }
    }

    Halide::Func &in_task(Halide::Func &f, Halide::MemoryType memory) {
        return one_task(f.compute_at(task_loop).store_in(memory));
    }

    Halide::Func &one_value(Halide::Func &f, const Halide::LoopLevel &level) {
        return one_task(f.compute_at(level).store_in(Halide::MemoryType::Register));
    }
};

}  // namespace heed
