// Prefill on x86. Query rows are the vector lanes: k and v are read in place as scalars that the FMA broadcasts, the
// softmax needs no horizontal reduction, and only q and the result are transposed, once per block of rows.
//
//   task = (block of rows, head, sequence), parallel; per block of keys:
//     logits^T [keys][rows] = k (scalars) x q^T (vectors)     register tile: row_block rows x key_tile keys, over all
//     of d softmax               lane-wise over the keys out^T    [d][rows]   += v (scalars) x weights^T register tile:
//     row_block rows x key_tile values of d, over the keys
#include "schedules.h"

namespace heed {

using namespace Halide;

namespace {

class PrefillSchedule {
public:
    PrefillSchedule(AttentionStages &stages, const AttentionConfig &config) : st(stages), cfg(config) {}

    void apply() {
        outputs();
        queries();
        chain(st.full, 0);
        chain(st.masked, 1);
    }

private:
    AttentionStages &st;
    const AttentionConfig &cfg;
    Var rv{"rv"}, ro{"ro"}, dv{"dv"}, db{"db"}, kt{"kt"}, ko{"ko"};

    // Scratch of one task: all coordinates of the task have one value. Small or hot: in the stack frame (Register).
    // What would make the frame large (head_dim times row_block floats): in the workspace, through halide_malloc once
    // per task.
    Func &in_frame(Func &f) { return one_task(f.compute_at(st.out, st.task).store_in(MemoryType::Register)); }
    Func &in_workspace(Func &f) { return one_task(f.compute_at(st.out, st.task).store_in(MemoryType::Heap)); }
    Func &one_task(Func &f) {
        for (const Var &v : {st.rb, st.c, st.b, st.sp}) {
            if (has(f, v)) {
                f.bound_extent(v, 1);
            }
        }
        return f;
    }
    static bool has(const Func &f, const Var &v) {
        for (const Var &arg : f.args()) {
            if (arg.name() == v.name()) {
                return true;
            }
        }
        return false;
    }
    Func &of_block(Func &f, const BlockChain &ch) {
        f.compute_at(st.state, ch.steps.y).store_in(MemoryType::Register);
        return one_task(f).bound_extent(st.kb, 1).bound_extent(st.row, cfg.row_block);
    }

    // Elements of a head, known now or bounded.
    Func &along_d(Func &f, const Var &d, int length, int before = 0) {
        return cfg.any_head_dim() ? f.bound_storage(d, before + cfg.padded(length))
                                  : f.bound_extent(d, before + cfg.padded(length));
    }
    Func &padded_rows(Func &f, PaddedRows &rows, int length) {
        along_d(f, st.d, length).vectorize(st.d, cfg.lanes, TailStrategy::RoundUp);
        f.update().vectorize(rows.over_d.x, cfg.lanes, TailStrategy::Predicate);
        return f;
    }
    void padded_block(PaddedRows &rows, const BlockChain &ch, int length) {
        Func &f = rows.rows;
        f.compute_at(st.state, ch.steps.y).hoist_storage(st.out, st.task).store_in(MemoryType::Heap);
        padded_rows(one_task(f).bound_extent(st.kb, 1).bound_extent(st.k, ch.block), rows, length);
    }

    void outputs() {
        const int rows = cfg.row_block, lanes = cfg.lanes;
        if (!cfg.any_head_dim()) {
            st.out.bound(st.d, 0, cfg.head_dim_v);
        }
        st.out.split(st.s, st.rb, st.row, rows, TailStrategy::GuardWithIf)
            .reorder(st.d, st.row, st.rb, st.h, st.b)
            .fuse(st.rb, st.h, st.task)
            .fuse(st.task, st.b, st.task)
            .parallel(st.task)
            .partition(st.task, Partition::Never)
            .vectorize(st.d, lanes, TailStrategy::GuardWithIf);
        in_frame(st.lse_rows).bound_extent(st.row, rows).vectorize(st.row, lanes);
        along_d(in_workspace(st.out_rows), st.d, cfg.head_dim_v)
            .bound_extent(st.row, rows)
            .tile(st.d, st.row, db, ro, dv, rv, lanes, lanes, TailStrategy::RoundUp)
            .vectorize(dv)
            .unroll(rv);
        tiles(st.out_tiles, st.out_rows, db);
        in_frame(st.inverse_sum).bound_extent(st.row, rows).vectorize(st.row, lanes);
        along_d(in_workspace(st.state), st.x, cfg.head_dim_v, cfg.state_slots())
            .bound_extent(st.row, rows)
            .vectorize(st.row, lanes);
    }

    void queries() {
        const int rows = cfg.row_block, lanes = cfg.lanes;
        in_frame(st.block_range);
        in_frame(st.row_range).bound_extent(st.row, rows).vectorize(st.row, lanes);
        if (cfg.pads_rows()) {
            padded_rows(in_workspace(st.q_padded.rows), st.q_padded, cfg.head_dim).bound_extent(st.row, rows);
        }
        along_d(in_workspace(st.q_lanes), st.d, cfg.head_dim)
            .bound_extent(st.row, rows)
            .tile(st.row, st.d, ro, db, rv, dv, lanes, lanes, TailStrategy::RoundUp)
            .vectorize(rv)
            .unroll(dv);
        tiles(st.q_tiles, st.q_lanes, ro);
    }

    void tiles(TransposedTiles &t, Func &consumer, const Var &level) {
        const int elements = cfg.lanes * cfg.lanes;
        for (size_t n = 0; n < t.steps.size(); n++) {
            one_task(t.steps[n])
                .compute_at(consumer, level)
                .store_in(MemoryType::Register)
                .bound_extent(st.e, elements)
                .bound_extent(st.ti, 1)
                .bound_extent(st.tj, 1)
                .vectorize(st.e, n == 0 ? cfg.lanes : 2 * cfg.lanes)
                .unroll(st.e);
        }
    }

    void chain(BlockChain &ch, int update) {
        const int lanes = cfg.lanes, tile = cfg.key_tile;
        RVar slot = ch.steps.x, step = ch.steps.y;
        st.state.update(update).split(st.row, ro, rv, lanes).reorder(rv, ro, slot, step).vectorize(rv).unroll(ro);

        if (cfg.pads_rows()) {
            padded_block(ch.k_rows, ch, cfg.head_dim);
            padded_block(ch.v_rows, ch, cfg.head_dim_v);
        }
        if (cfg.per_logit()) {
            of_block(ch.visible, ch).bound_extent(st.k, ch.block).vectorize(st.row, lanes);
        }
        of_block(ch.block_max, ch)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .update()
            .reorder(st.row, ch.keys)
            .vectorize(st.row, lanes)
            .unroll(st.row);
        of_block(ch.block_sum, ch)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .update()
            .reorder(st.row, ch.keys)
            .vectorize(st.row, lanes)
            .unroll(st.row);
        of_block(ch.weights, ch).bound_extent(st.k, ch.block).vectorize(st.row, lanes).unroll(st.row);
        of_block(ch.logits, ch)
            .bound_extent(st.k, ch.block)
            .split(st.k, ko, kt, tile)
            .reorder(st.row, kt, ko)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .unroll(kt);
        register_tile(ch.product.compute_at(ch.logits, ko), ch.over_d, st.k, 2);
        along_d(of_block(ch.block_out, ch).hoist_storage(st.out, st.task).store_in(MemoryType::Heap), st.d,
                cfg.head_dim_v)
            .split(st.d, db, dv, tile, TailStrategy::RoundUp)
            .reorder(st.row, dv, db)
            .vectorize(st.row, lanes)
            .unroll(st.row)
            .unroll(dv);
        // Two steps at once keep LLVM from folding the test of visibility into a masked FMA.
        register_tile(ch.value_tile.compute_at(ch.block_out, db), ch.keys, st.d, ch.ranged ? 1 : 2);
    }

    // row_block rows x key_tile of `other` stay in registers over the whole of `over`; the consumer then copies them.
    void register_tile(Func &f, const RDom &over, const Var &other, int unroll) {
        const int lanes = cfg.lanes;
        RVar inner("inner"), outer("outer");
        one_task(f)
            .store_in(MemoryType::Register)
            .bound_extent(st.kb, 1)
            .bound_extent(st.row, cfg.row_block)
            .bound_extent(other, cfg.key_tile);
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

void schedule_attention_prefill_x86(AttentionStages &stages, const AttentionConfig &config, const Machine &) {
    PrefillSchedule(stages, config).apply();
}

}  // namespace heed
