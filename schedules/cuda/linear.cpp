// Dense layers on CUDA: a block of threads has a tile of results.
//
//   for each step of k
//     x_tile, w_tile: from tensors to shared memory
//     sum += x_tile x w_tile, in registers
//
// Tensor cores (f16 and bf16 whose rows are whole chunks of 16 bytes): 128 x 64 results of four warps, each of which
// has 32 rows; steps of 32, copied one ahead into a second buffer. Both buffers are 30 KiB, so that three blocks fit an
// SM that has 100 KiB, as many as their registers allow. CUDA cores: 64 x 64 results, 4 x 4 a thread; 8 floats that a
// thread loads from shared memory make 16 products.
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

constexpr LinearDeviceTile linear_on_tensor_cores = {128, 64, 8, 4, false};
constexpr LinearDeviceTile linear_on_cuda_cores = {64, 64, 1, 16, true};

constexpr int padding_bytes = 16;  // of a row of a tile: rows that are read at once are in different banks

// Variables of a tile of results. The threads of a warp have rows and columns as LowerTileProducts wants them.
template <typename V>
struct DealtOut {
    V block{"block"}, in_block{"in_block"}, quad{"quad"}, pair{"pair"};
    V eight{"eight"}, group{"group"}, warp{"warp"}, r{"r"}, lane{"lane"}, thread{"thread"};

    template <typename S, typename D>
    DealtOut(S &&stage, const D &column, const D &row, int row_blocks) {
        stage.split(column, block, in_block, 8)
            .split(in_block, quad, pair, 2)
            .split(row, eight, group, 8)
            .split(eight, warp, r, row_blocks)
            .fuse(quad, group, lane)
            .fuse(lane, warp, thread);
    }
};

}  // namespace

Module linear_cores_cuda(const OpSpec &spec) {
    LinearDevice kernel(spec.type(), linear_on_tensor_cores);
    const LinearDeviceTile &tile = kernel.tile;
    const int row_blocks = 4;

    Stage results = kernel.named.update();
    const DealtOut<RVar> of_all(results, kernel.all.x, kernel.all.y, row_blocks);
    results.reorder(of_all.pair, of_all.block, of_all.r, of_all.thread, kernel.all.z, kernel.all.w)
        .gpu_blocks(kernel.all.z, kernel.all.w)
        .gpu_threads(of_all.thread)
        .unroll(of_all.pair)
        .unroll(of_all.block)
        .unroll(of_all.r)
        .never_partition_all();

    const DealtOut<Var> of_zero(kernel.sum, kernel.column, kernel.row, row_blocks);
    kernel.sum.compute_at(kernel.named, kernel.all.z)
        .store_in(MemoryType::Register)
        .bound_extent(kernel.column, tile.columns)
        .bound_extent(kernel.row, tile.rows)
        .bound_extent(kernel.across, 1)
        .bound_extent(kernel.down, 1)
        .reorder(of_zero.pair, of_zero.block, of_zero.r, of_zero.thread)
        .gpu_threads(of_zero.thread)
        .unroll(of_zero.pair)
        .unroll(of_zero.block)
        .unroll(of_zero.r);
    Stage update = kernel.sum.update();
    const DealtOut<Var> of_sum(update, kernel.column, kernel.row, row_blocks);
    update
        .reorder(of_sum.pair, of_sum.block, of_sum.r, kernel.over_k.x, kernel.over_k.y, of_sum.thread, kernel.over_k.z)
        .gpu_threads(of_sum.thread)
        .never_partition_all();

    for (Func f : {kernel.x_tile, kernel.w_tile}) {
        const Var line = f.args()[2];
        Var s("s"), thread("thread"), number("number");
        f.compute_at(kernel.sum, kernel.over_k.z)
            .store_in(MemoryType::GPUShared)
            .bound_extent(kernel.k, tile.width)
            .bound_extent(kernel.chunk, tile.chunks)
            .bound_extent(line, f.name() == kernel.x_tile.name() ? tile.rows : tile.columns)
            .bound_extent(kernel.step, 1)
            .bound_extent(f.args()[4], 1)
            .align_storage(kernel.chunk, tile.chunks + 1)
            .fuse(kernel.chunk, line, number)
            .split(number, s, thread, linear_core_threads)
            .reorder(kernel.k, s, thread)
            .vectorize(kernel.k)
            .unroll(s)
            .gpu_threads(thread)
            .never_partition_all();
    }
    OpSpec narrow = spec;
    narrow.target = spec.target.without_feature(Target::LargeBuffers);
    return compile_cuda(narrow, kernel, linear_core_threads, [&](Passes &passes) {
        passes.add_exactly<PipelineCopies>(1, "loops of linear that copy ahead");
        passes.add_exactly<LowerTileProducts>(1, "products of linear that become tiles", spec.type(),
                                              linear_core_threads);
        passes.add_exactly<PrivateRegisters>(1, "arrays of linear in registers");
        passes.add<DropBarriers>();
        passes.add_exactly<LowerSharedMemory>(1, "arrays of linear in shared memory", linear_cores_shared_bytes());
    });
}

// x and W, in two buffers of padded rows.
int linear_cores_shared_bytes() {
    const LinearDeviceTile &tile = linear_on_tensor_cores;
    return 2 * (tile.rows + tile.columns) * (2 * tile.width * tile.chunks + padding_bytes);
}

}  // namespace heed
