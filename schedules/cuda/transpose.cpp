#include "generators/ops/transpose.h"

#include "generators/lowering/cuda/shared_memory.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

// A block turns a square in shared memory, whose lines are an element longer: no two lanes meet in a bank.
Module transpose_cuda(const OpSpec &spec) {
    TransposeDevice kernel(spec.type());
    constexpr int side = transpose_side, rows_at_once = cuda_op_threads / side;
    RVar across{"across"}, down{"down"}, x{"x"}, y{"y"}, pass{"pass"}, thread{"thread"};
    kernel.named.update()
        .split(kernel.all.x, across, x, side, TailStrategy::GuardWithIf)
        .split(kernel.all.y, down, y, side, TailStrategy::GuardWithIf)
        .split(y, pass, y, rows_at_once)
        .reorder(pass, x, y, across, down)
        .unroll(pass)
        .fuse(x, y, thread)
        .gpu_blocks(across, down)
        .gpu_threads(thread)
        .never_partition_all();
    Var line{"line"}, tile_pass{"tile_pass"}, tile_thread{"tile_thread"};
    kernel.from.compute_at(kernel.named, across)
        .store_in(MemoryType::GPUShared)
        .bound_extent(kernel.column, side)
        .bound_extent(kernel.row, side)
        .align_storage(kernel.column, side + 1)
        .split(kernel.row, tile_pass, line, rows_at_once)
        .reorder(tile_pass, kernel.column, line)
        .unroll(tile_pass)
        .fuse(kernel.column, line, tile_thread)
        .gpu_threads(tile_thread);
    return compile_cuda(spec, kernel, cuda_op_threads,
                        [](Passes &passes) { passes.add<LowerSharedMemory>(transpose_shared_bytes); });
}

}  // namespace heed
