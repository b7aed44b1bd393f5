#pragma once
// What the x86 schedules share: scratch of one task, the parallel unit of work, inside its loop `task_loop`.

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

    // All coordinates of the task have one value.
    Halide::Func &one_task(Halide::Func &f) {
        for (const Halide::Var &v : {st.t, st.sp}) {
            for (const Halide::Var &arg : f.args()) {
                if (arg.name() == v.name()) f.bound_extent(v, 1);
            }
        }
        return f;
    }

    // Small or hot: in the stack frame. What would make the frame large: in the workspace, through halide_malloc once
    // per task.
    Halide::Func &in_frame(Halide::Func &f) { return in_task(f, Halide::MemoryType::Register); }
    Halide::Func &in_workspace(Halide::Func &f) { return in_task(f, Halide::MemoryType::Heap); }

    Halide::Func &of_block(Halide::Func &f, const BlockChain &ch) {
        f.compute_at(st.state, ch.steps.y).store_in(Halide::MemoryType::Register);
        return one_task(f).bound_extent(st.kb, 1);
    }

    // The same where it would make the frame large.
    Halide::Func &of_block_in_workspace(Halide::Func &f, const BlockChain &ch) {
        return of_block(f, ch).hoist_storage(task_loop).store_in(Halide::MemoryType::Heap);
    }

    // Elements of a head, known now or bounded.
    Halide::Func &along_d(Halide::Func &f, const Halide::Var &d, int length, int before = 0) {
        return cfg.any_head_dim() ? f.bound_storage(d, before + cfg.padded(length))
                                  : f.bound_extent(d, before + cfg.padded(length));
    }

    Halide::Func &padded_rows(Halide::Func &f, PaddedRows &rows, int length) {
        along_d(f, st.d, length).vectorize(st.d, cfg.lanes, Halide::TailStrategy::RoundUp);
        if (rows.over_d.defined()) {
            f.update().vectorize(rows.over_d.x, cfg.lanes, Halide::TailStrategy::Predicate);
        }
        return f;
    }

    // Copies of k and v, and where the keys of a block are.
    void keys_of_block(BlockChain &ch) {
        of_block(ch.first_key, ch);
        if (ch.prefill.seen_end.defined()) of_block(ch.prefill.seen_end, ch);
        if (cfg.paged) {
            of_block(ch.slots, ch).bound_extent(st.k, ch.block).vectorize(st.k, cfg.lanes);
        }
        if (cfg.copies_k()) padded_block(ch.k_rows, ch, cfg.head_dim);
        if (cfg.copies_v()) padded_block(ch.v_rows, ch, cfg.head_dim_v);
    }

    void padded_block(PaddedRows &rows, const BlockChain &ch, int length) {
        padded_rows(of_block_in_workspace(rows.rows, ch).bound_extent(st.k, ch.block), rows, length);
    }

private:
    Halide::Func &in_task(Halide::Func &f, Halide::MemoryType memory) {
        return one_task(f.compute_at(task_loop).store_in(memory));
    }
};

}  // namespace heed
