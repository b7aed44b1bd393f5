// Dense layers on CUDA: a block of threads has a tile of results.
//
//   for each step of k
//     x_tile, w_tile: from tensors to shared memory
//     sum += x_tile x w_tile, in registers
//
// Tensor cores (f16 and bf16 whose rows are whole chunks of 16 bytes): 128 x 64 results of four warps, each of which
// has 32 rows; steps of 32, copied one ahead into a second buffer. With both buffers (30 KiB) three blocks fit an SM
// that has 100 KiB, as many as fit its registers; steps of 64 would leave one. 86 instructions for the 32 products of a
// step (sm_80). CUDA cores (any type and alignment): 64 x 64 results, 4 x 4 a thread; steps of 16. 8 floats that a
// thread loads from shared memory make 16 products: 344 instructions for the 256 of a step.
#include "generators/lowering/cuda/barriers.h"
#include "generators/lowering/cuda/pipeline_copies.h"
#include "generators/lowering/cuda/private_registers.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "generators/lowering/cuda/tile_products.h"
#include "generators/ops/linear_device.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

constexpr LinearDeviceTile tile_of_tensor_cores = {128, 64, 8, 4, false};
constexpr LinearDeviceTile tile_of_cuda_cores = {64, 64, 1, 16, true};

constexpr int padding_bytes = 16;  // of a row of a tile: rows that are read at once are in different banks
constexpr int square = 4;          // rows and columns of a thread on CUDA cores

// Variables of a stage over a tile of results: those of the thread's own results, innermost first.
struct Dealt {
    std::vector<VarOrRVar> own;
    VarOrRVar thread;
};
using Deal = Dealt (*)(Stage stage, const VarOrRVar &column, const VarOrRVar &row);

// As LowerTileProducts has them.
Dealt in_fragments(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    const auto variable = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    const VarOrRVar block = variable("block"), in_block = variable("in_block"), quad = variable("quad"),
                    pair = variable("pair"), eight = variable("eight"), group = variable("group"),
                    warp = variable("warp"), rows = variable("rows"), lane = variable("lane"),
                    thread = variable("thread");
    stage.split(column, block, in_block, 8)
        .split(in_block, quad, pair, 2)
        .split(row, eight, group, 8)
        .split(eight, warp, rows, 4)
        .fuse(quad, group, lane)
        .fuse(lane, warp, thread);
    return {{pair, block, rows}, thread};
}

Dealt in_squares(Stage stage, const VarOrRVar &column, const VarOrRVar &row) {
    const auto variable = [&](const char *name) { return VarOrRVar(name, column.is_rvar); };
    const VarOrRVar x = variable("x"), y = variable("y"), i = variable("i"), j = variable("j"),
                    thread = variable("thread");
    stage.split(column, x, j, square).split(row, y, i, square).fuse(x, y, thread);
    return {{j, i}, thread};
}

void order(Stage stage, std::vector<VarOrRVar> loops, const std::vector<VarOrRVar> &outer) {
    loops.insert(loops.end(), outer.begin(), outer.end());
    stage.reorder(loops).never_partition_all();
}
void unroll(Stage stage, const std::vector<VarOrRVar> &loops) {
    for (const VarOrRVar &loop : loops) stage.unroll(loop);
}

// All but the tiles of x and W. What a thread has of a step is left as loops, which the result names.
std::vector<VarOrRVar> schedule_results(LinearDevice &kernel, Deal deal) {
    Stage results = kernel.named.update();
    const Dealt of_all = deal(results, kernel.all.x, kernel.all.y);
    order(results, of_all.own, {of_all.thread, kernel.all.z, kernel.all.w});
    unroll(results.gpu_blocks(kernel.all.z, kernel.all.w).gpu_threads(of_all.thread), of_all.own);

    kernel.sum.compute_at(kernel.named, kernel.all.z)
        .store_in(MemoryType::Register)
        .bound_extent(kernel.column, kernel.tile.columns)
        .bound_extent(kernel.row, kernel.tile.rows)
        .bound_extent(kernel.across, 1)
        .bound_extent(kernel.down, 1);
    const Dealt of_zeros = deal(kernel.sum, kernel.column, kernel.row);
    order(kernel.sum, of_zeros.own, {of_zeros.thread});
    kernel.sum.gpu_threads(of_zeros.thread);
    unroll(kernel.sum, of_zeros.own);

    Stage products = kernel.sum.update();
    const Dealt of_products = deal(products, kernel.column, kernel.row);
    std::vector<VarOrRVar> loops = of_products.own;
    loops.insert(loops.end(), {kernel.over_k.x, kernel.over_k.y});
    order(products, loops, {of_products.thread, kernel.over_k.z});
    products.gpu_threads(of_products.thread);
    return loops;
}

// A tile of x or W: `lines` rows or columns.
Func &in_shared_memory(LinearDevice &kernel, Func &tile, int lines) {
    return tile.compute_at(kernel.sum, kernel.over_k.z)
        .store_in(MemoryType::GPUShared)
        .bound_extent(kernel.k, kernel.tile.width)
        .bound_extent(kernel.chunk, kernel.tile.chunks)
        .bound_extent(tile.args()[2], lines)
        .bound_extent(kernel.step, 1)
        .bound_extent(tile.args()[4], 1)
        .never_partition_all();
}

// Lines are padded; a thread copies 16 bytes at a time.
void schedule_copies(LinearDevice &kernel, Func &tile, int lines) {
    const Var line = tile.args()[2], number("number"), round("round"), thread("thread");
    in_shared_memory(kernel, tile, lines)
        .align_storage(kernel.chunk, kernel.tile.chunks + padding_bytes / 16)
        .fuse(kernel.chunk, line, number)
        .split(number, round, thread, linear_core_threads)
        .reorder(kernel.k, round, thread)
        .vectorize(kernel.k)
        .unroll(round)
        .gpu_threads(thread);
}

// Lines vary fastest, padded, and a thread reads four of them at once.
void schedule_floats(LinearDevice &kernel, Func &tile, int lines) {
    const Var line = tile.args()[2], round("round"), group("group"), thread("thread");
    tile.in(kernel.sum)
        .compute_at(kernel.sum, kernel.over_k.y)
        .store_in(MemoryType::Register)
        .bound_extent(line, square)
        .vectorize(line);
    in_shared_memory(kernel, tile, lines)
        .reorder_storage(line, kernel.k, kernel.chunk, kernel.step, tile.args()[4])
        .align_storage(line, lines + padding_bytes / 4)
        .split(line, round, group, linear_threads / kernel.tile.chunks)
        .fuse(kernel.chunk, group, thread)
        .reorder(kernel.k, round, thread)
        .unroll(round)
        .gpu_threads(thread);
}

}  // namespace

Module linear_cores_cuda(const OpSpec &spec) {
    LinearDevice kernel(spec.type(), tile_of_tensor_cores);
    schedule_results(kernel, in_fragments);
    schedule_copies(kernel, kernel.x_tile, kernel.tile.rows);
    schedule_copies(kernel, kernel.w_tile, kernel.tile.columns);
    return compile_cuda(spec, kernel, linear_core_threads, [&](Passes &passes) {
        passes.add_exactly<PipelineCopies>(1, "loops of linear that copy ahead");
        passes.add_exactly<LowerTileProducts>(1, "products of linear", spec.type(), linear_core_threads);
        passes.add_exactly<PrivateRegisters>(1, "arrays of linear in registers");
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(linear_cores_shared_bytes());
    });
}

Module linear_cuda(const OpSpec &spec) {
    LinearDevice kernel(spec.type(), tile_of_cuda_cores);
    unroll(kernel.sum.update(), schedule_results(kernel, in_squares));
    schedule_floats(kernel, kernel.x_tile, kernel.tile.rows);
    schedule_floats(kernel, kernel.w_tile, kernel.tile.columns);
    return compile_cuda(spec, kernel, linear_threads, [&](Passes &passes) {
        passes.add_exactly<PrivateRegisters>(1 + 2 * kernel.tile.chunks, "arrays of linear in registers");
        passes.add<DropBarriers>();
        passes.add<LowerSharedMemory>(linear_shared_bytes());
    });
}

// Two buffers.
int linear_cores_shared_bytes() {
    const LinearDeviceTile &tile = tile_of_tensor_cores;
    return 2 * (tile.rows + tile.columns) * (2 * tile.width * tile.chunks + padding_bytes);
}

int linear_shared_bytes() {
    const LinearDeviceTile &tile = tile_of_cuda_cores;
    return tile.chunks * (4 * (tile.rows + tile.columns) + 2 * padding_bytes);
}

}  // namespace heed
