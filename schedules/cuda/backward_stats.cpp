#include "generators/ops/backward_stats.h"

#include "generators/lowering/cuda/shared_memory.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

// A warp has a row, a lane every 32nd element of it.
Module backward_stats_cuda(const OpSpec &spec) {
    BackwardStatsDevice kernel(spec.type());
    RVar block{"block"}, warp{"warp"}, thread{"thread"}, round{"round"}, lanes{"lanes"};
    kernel.named.update()
        .split(kernel.all.y, block, warp, cuda_op_threads / 32, TailStrategy::GuardWithIf)
        .reorder(kernel.all.x, warp, block)
        .fuse(kernel.all.x, warp, thread)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .never_partition_all();
    for (Func f : {kernel.lse_of, kernel.sees}) f.compute_at(kernel.named, thread).store_in(MemoryType::Register);
    kernel.delta.compute_at(kernel.named, thread)
        .store_in(MemoryType::Register)
        .update()
        .split(kernel.over_d, round, lanes, 32, TailStrategy::GuardWithIf)
        .reorder(round, lanes)
        .never_partition_all();
    return compile_cuda(spec, kernel);
}

// A block has a head.
Module backward_sinks_cuda(const OpSpec &spec) {
    BackwardSinksDevice kernel;
    RVar lanes{"lanes"};
    kernel.named.update().gpu_blocks(kernel.all.y).gpu_threads(kernel.all.x).never_partition_all();
    kernel.total.compute_at(kernel.named, kernel.all.x)
        .store_in(MemoryType::Register)
        .update()
        .unroll(kernel.over_warps);
    Var thread{"thread"};
    kernel.all_copies.compute_at(kernel.named, kernel.all.y)
        .store_in(MemoryType::GPUShared)
        .bound_extent(kernel.copy, 32)
        .bound_extent(kernel.warp, BackwardSinksDevice::warps)
        .fuse(kernel.copy, kernel.warp, thread)
        .gpu_threads(thread);
    kernel.of_warp.compute_at(kernel.all_copies, thread)
        .store_in(MemoryType::Register)
        .update()
        .rename(kernel.over_rows.x, lanes)
        .reorder(kernel.over_rows.y, kernel.over_rows.z, lanes)
        .never_partition_all();
    return compile_cuda(spec, kernel, cuda_op_threads,
                        [](Passes &passes) { passes.add<LowerSharedMemory>(backward_sinks_shared_bytes); });
}

}  // namespace heed
