// Attention weights on CUDA: a block has 32 rows of a head and goes through its keys three times, 64 at a time.
//
//   for row_max, row_sum, the result; for each 64 keys
//     key_row: where they are
//     for each step of the head dim
//       x_tile, w_tile: from tensors to shared memory
//       sum += x_tile x w_tile, in registers: 4 x 4 a thread
//     products: sum, in shared memory
//     4 threads have a row, each every fourth key
//
// Any type and alignment, so that products are made on CUDA cores: 208 instructions for the 128 of a thread's step of 8
// (sm_80), then about 150 for each score. 14 KB of shared memory and 128 registers: four blocks fit an SM that has
// 64 KiB (sm_75).
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/ops/probs_device.h"
#include "schedules/cuda/operation.h"
#include "schedules/cuda/tile_product.h"

namespace heed {

using namespace Halide;

namespace {

constexpr ProductTile probs_tile = {32, 64, 1, 8, true};
constexpr int probs_lanes = 4;  // of a row

Func &of_block(Func &f, AttentionProbsDevice &kernel, MemoryType where) {
    return f.compute_at(kernel.named, kernel.all.w).store_in(where);
}

// What is computed for the products of a tile.
void schedule_tile(AttentionProbsDevice &kernel, AttentionProbsDevice::Tile &tile, const LoopLevel &at) {
    const auto in_tile = [&](Func &f, MemoryType where) -> Func & {
        return f.compute_at(at)
            .store_in(where)
            .bound_extent(tile.column, kernel.tile.columns)
            .bound_extent(kernel.across, 1)
            .bound_extent(kernel.down, 1);
    };
    unroll(tile.sum.update(), schedule_sum(tile, at, in_squares));
    schedule_floats(tile, tile.x_tile, kernel.tile.rows, probs_threads);
    tile.x_tile.store_in(MemoryType::Stack);
    schedule_floats(tile, tile.w_tile, kernel.tile.columns, probs_threads);
    in_tile(tile.key_row, MemoryType::Stack).gpu_threads(tile.column);
    in_tile(tile.products, MemoryType::GPUShared)
        .bound_extent(kernel.row, kernel.tile.rows)
        .align_storage(tile.column, kernel.tile.columns + 4);  // rows that are read at once are in different banks
    deal_out(tile.products, in_squares(tile.products, tile.column, kernel.row));
}

// Maxima and sums: first those of lanes, in registers, then those of rows.
void schedule_reduction(AttentionProbsDevice &kernel, Func &of_lane, Func &of_row) {
    const Var thread{"thread"};
    const auto with_lanes = [&](Func &f) -> Func & {
        return f.bound_extent(kernel.u, probs_lanes)
            .bound_extent(kernel.row, kernel.tile.rows)
            .bound_extent(kernel.down, 1)
            .fuse(kernel.u, kernel.row, thread)
            .gpu_threads(thread);
    };
    Func all_lanes = of_lane.in(of_row);
    with_lanes(of_block(all_lanes, kernel, MemoryType::GPUShared));
    with_lanes(of_block(of_lane, kernel, MemoryType::Register))
        .update()
        .fuse(kernel.u, kernel.row, thread)
        .reorder(kernel.over_blocks.x, thread, kernel.over_blocks.y)
        .gpu_threads(thread)
        .never_partition_all();
    of_block(of_row, kernel, MemoryType::Stack)
        .bound_extent(kernel.row, kernel.tile.rows)
        .bound_extent(kernel.down, 1)
        .gpu_threads(kernel.row)
        .update()
        .gpu_threads(kernel.row);
}

}  // namespace

Module attention_probs_cuda(const OpSpec &spec) {
    AttentionProbsDevice kernel(spec.type(), spec.kv_type(), probs_tile, probs_lanes);
    RVar number{"number"}, lane{"lane"}, thread{"thread"};
    schedule_faults(kernel.named.update(1), kernel.faults, probs_threads);
    kernel.named.update()
        .split(kernel.all.x, number, lane, probs_lanes)
        .fuse(lane, kernel.all.y, thread)
        .reorder(number, thread, kernel.all.z, kernel.all.w)
        .gpu_blocks(kernel.all.w)
        .gpu_threads(thread)
        .never_partition_all();
    of_block(kernel.query_row, kernel, MemoryType::Stack)
        .bound_extent(kernel.row, kernel.tile.rows)
        .bound_extent(kernel.down, 1)
        .gpu_threads(kernel.row);
    schedule_reduction(kernel, kernel.lane_max, kernel.row_max);
    schedule_reduction(kernel, kernel.lane_sum, kernel.row_sum);
    // Not for the block: Halide computes what only probabilities need under a condition, and reads it without.
    kernel.factor.compute_at(kernel.named, thread).store_in(MemoryType::Register);
    schedule_tile(kernel, kernel.tiles[0], {kernel.lane_max, kernel.over_blocks.y});
    schedule_tile(kernel, kernel.tiles[1], {kernel.lane_sum, kernel.over_blocks.y});
    schedule_tile(kernel, kernel.tiles[2], {kernel.named, kernel.all.z});
    return compile_cuda(spec, kernel, probs_threads, [&](Passes &passes) {
        passes.add_exactly<PrivateRegisters>(3 * (1 + 2 * kernel.tile.chunks) + 3, "arrays of probs in registers");
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(probs_shared_bytes());
    });
}

// w_tile and what is of lanes are where products are.
int probs_shared_bytes() {
    const int rows = probs_tile.rows, columns = probs_tile.columns, products = 4 * rows * (columns + 4);
    return products + 3 * (shared_bytes_of(probs_tile, rows) + 8 * columns) + (8 + 2 * 4) * rows;
}

}  // namespace heed
