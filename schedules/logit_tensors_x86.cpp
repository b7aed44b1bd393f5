#include "schedules/logit_tensors_x86.h"

#include "schedules/transposed_tiles.h"

namespace heed {

using namespace Halide;

Func &LogitTensorsSchedule::by_tiles(Func &f, int keys, const BlockChain &ch) {
    return of_block_rows(f, ch)
        .bound_extent(st.k, ch.block)
        .tile(st.row, st.k, ro, ko, rv, kt, cfg.lanes, keys, TailStrategy::RoundUp)
        .reorder(rv, kt, ko, ro)
        .vectorize(rv)
        .partition(ro, loops_over_logits())
        .partition(ko, loops_over_logits());
}

void LogitTensorsSchedule::masks(BlockChain &ch) {
    PrefillBlock &of = ch.prefill;
    Func &rows = of.mask_rows;
    if (!cfg.reads_mask_words()) {
        by_squares(ch.visible, of.mask_tiles, rows, ch);
        read_dense(ch.visible, rows, ch, st.mask_on, st.prefill.mask_dense);
        return;
    }
    by_tiles(ch.visible, cfg.keys_of_mask_square(), ch).unroll(kt).specialize(st.mask_on);
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

void LogitTensorsSchedule::squares(Func &f, TransposedTiles &tiles, const Var &loop, Func &rows, const BlockChain &ch) {
    schedule_square(tiles, f, loop, cfg.lanes);
    one_task(rows.compute_at(f, ch.ranged ? ro : loop).store_in(MemoryType::Register))
        .bound_extent(st.kb, 1)
        .bound_extent(st.row, cfg.lanes)
        .bound_extent(st.k, ch.ranged ? ch.block : cfg.lanes)
        .vectorize(st.k, cfg.lanes);
}

void LogitTensorsSchedule::by_squares(Func &f, TransposedTiles &tiles, Func &rows, const BlockChain &ch) {
    by_tiles(f, cfg.lanes, ch).unroll(kt);
    squares(f, tiles, ko, rows, ch);
}

void LogitTensorsSchedule::by_pairs(BlockChain &ch) {
    const Var ki("ki");
    by_tiles(ch.biases, 2 * cfg.lanes, ch).split(kt, ki, kt, cfg.lanes).unroll(kt);
    ch.biases.specialize(st.bias_on).specialize(st.prefill.reads_dense_16).unroll(ki);
    schedule_square(ch.prefill.bias_pairs, ch.biases, ko, cfg.lanes);
    squares(ch.biases, ch.prefill.bias_tiles, ki, ch.prefill.bias_rows, ch);
}

void LogitTensorsSchedule::biases(BlockChain &ch) {
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

void LogitTensorsSchedule::read_dense(Func &f, Func &rows, const BlockChain &ch, const Expr &on, const Expr &dense) {
    Stage reads = f.specialize(on);
    if (!ch.ranged) reads.specialize(dense);
    Stage of_neighbours = rows.specialize(dense);
    if (!ch.ranged) of_neighbours.unroll(st.row);
}

}  // namespace heed
