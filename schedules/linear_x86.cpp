// Dense layers on x86: rows x columns accumulators in registers over all of k.
//
//   for each panel of columns of W (in L2: columns x k floats, 512 KiB at k 4096)
//     for each tile of rows of x
//       sum += x (broadcast from memory) x W (two vectors)    over k
//
// 32 registers: 12 x 2 vectors + 2 of W + 1 broadcast; 16 registers: 6 x 2 + 2 + 1. Per step of k a full tile loads 14
// (8) vectors for 24 (12) FMAs: bound by arithmetic; so are dot products of bf16, which step by two. Small tiles serve
// few rows, which wait for the memory of W. With AMX the sums are two by two of its tiles (LowerBf16Tiles), in memory
// only behind the last step.
#include "generators/lowering/bf16_dots.h"
#include "generators/lowering/bf16_tiles.h"
#include "schedules/ops.h"

namespace heed {

using namespace Halide;

LinearTile linear_tile(const Machine &machine, int rows) {
    return {rows, 2 * machine.lanes, machine.has_bf16_dots, machine.has_bf16_tiles};
}

// Vectors along k are loaded and scattered to their tile, one row after the other.
Passes schedule_linear_rows_x86(LinearRowsKernel &kernel, const Machine &machine) {
    kernel.tiles.bound(kernel.r, 0, kernel.tile.rows)
        .reorder(kernel.k, kernel.r, kernel.t)
        .vectorize(kernel.k, machine.lanes, TailStrategy::GuardWithIf);
    return {};
}

Passes schedule_linear_x86(LinearKernel &kernel, const Machine &machine) {
    const LinearTile &tile = kernel.tile;
    kernel.out.split(kernel.c, kernel.panel, kernel.lane, tile.columns, TailStrategy::GuardWithIf)
        .split(kernel.row, kernel.t, kernel.r, tile.rows, TailStrategy::GuardWithIf)
        .reorder(kernel.lane, kernel.r, kernel.t, kernel.panel)
        .vectorize(kernel.lane, machine.lanes)
        .unroll(kernel.r);
    kernel.sum.compute_at(kernel.out, kernel.t)
        .bound_extent(kernel.lane, tile.columns)
        .bound_extent(kernel.r, tile.rows);
    if (tile.bf16_tiles) {
        kernel.out.partition(kernel.t, Partition::Never).partition(kernel.panel, Partition::Never);
        kernel.sum.store_in(MemoryType::Stack).update().unscheduled();
        Passes passes;
        passes.add_exactly<LowerBf16Tiles>(1, "products of linear that become matrix tiles");
        return passes;
    }
    kernel.sum.store_in(MemoryType::Register)
        .vectorize(kernel.lane, machine.lanes)
        .unroll(kernel.lane)
        .unroll(kernel.r)
        .update()
        .reorder(kernel.lane, kernel.r, kernel.over_k)
        .vectorize(kernel.lane, machine.lanes)
        .unroll(kernel.lane)
        .unroll(kernel.r);
    Passes passes;
    if (tile.bf16_dots) passes.add<LowerBf16Dots>();
    return passes;
}

}  // namespace heed
