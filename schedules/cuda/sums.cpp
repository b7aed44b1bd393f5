#include "generators/ops/sums.h"

#include "generators/lowering/cuda/shared_memory.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

// A block has 32 columns of a slice, a lane each; the first warp adds up the sums of all warps, from shared memory.
// ptxas unrolls the loop over rows by four: ten instructions an element of 16 bits, four loads under way.
Module column_sums_cuda(const OpSpec &spec) {
    ColumnSumsDevice kernel(spec.type());
    RVar block{"block"}, lane{"lane"};
    kernel.named.update()
        .split(kernel.all.x, block, lane, column_sums_columns, TailStrategy::GuardWithIf)
        .gpu_blocks(block, kernel.all.y)
        .gpu_threads(lane)
        .never_partition_all();
    kernel.sums.compute_at(kernel.named, lane).store_in(MemoryType::Register).update().unroll(kernel.over_parts);
    Var thread{"thread"};
    Func shared = kernel.of_part.in(kernel.sums);
    shared.compute_at(kernel.named, block)
        .store_in(MemoryType::GPUShared)
        .bound_extent(kernel.c, column_sums_columns)
        .bound_extent(kernel.part, ColumnSumsDevice::warps)
        .fuse(kernel.c, kernel.part, thread)
        .gpu_threads(thread);
    kernel.of_part.compute_at(shared, thread).store_in(MemoryType::Register).update().never_partition_all();
    return compile_cuda(spec, kernel, cuda_op_threads,
                        [](Passes &passes) { passes.add<LowerSharedMemory>(column_sums_shared_bytes); });
}

}  // namespace heed
