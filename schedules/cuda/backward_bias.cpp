#include "generators/ops/backward_bias.h"

#include "generators/lowering/carried.h"
#include "generators/lowering/cuda/shared_memory.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

void schedule_dots(BackwardBiasDevice &kernel, BackwardBiasDevice::Sums &sums) {
    for (Func f : {sums.seen, sums.rows, sums.dot, sums.weight_dot}) {
        f.compute_at(sums.sum, sums.over.x)
            .store_in(MemoryType::Register)
            .bound_extent(kernel.key, 1)
            .bound_extent(kernel.line, 1)
            .bound_extent(kernel.element, 1);
    }
    for (Func f : {sums.dot, sums.weight_dot}) f.update().never_partition_all();
}

}  // namespace

// A block, or where few logits share an element a thread, has an element: simple, not fast. A thread of a block adds up
// its lines; then these sums are added.
Module backward_bias_cuda(const OpSpec &spec) {
    BackwardBiasDevice kernel(spec.type(), cuda_op_threads, spec.score_mod);
    RVar block{"block"}, thread{"thread"};
    kernel.named.update(0).gpu_blocks(kernel.of_block.all.y).gpu_threads(kernel.of_block.all.x).never_partition_all();
    kernel.total.compute_at(kernel.named, kernel.of_block.all.x).store_in(MemoryType::Register);
    Func sums = kernel.of_block.sum.in(kernel.total);
    sums.compute_at(kernel.named, kernel.of_block.all.y)
        .store_in(MemoryType::GPUShared)
        .bound_extent(kernel.part, cuda_op_threads)
        .gpu_threads(kernel.part);
    kernel.of_block.sum.compute_at(sums, kernel.part).store_in(MemoryType::Register).update().never_partition_all();
    schedule_dots(kernel, kernel.of_block);

    kernel.named.update(1)
        .split(kernel.of_thread.all, block, thread, cuda_op_threads, TailStrategy::GuardWithIf)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .never_partition_all();
    kernel.of_thread.sum.compute_at(kernel.named, thread).store_in(MemoryType::Register).update().never_partition_all();
    schedule_dots(kernel, kernel.of_thread);
    return compile_cuda(spec, kernel, cuda_op_threads, [](Passes &passes) {
        passes.add<LowerOnce>();
        passes.add<LowerSharedMemory>(backward_bias_shared_bytes);
    });
}

}  // namespace heed
