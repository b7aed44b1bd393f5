#include "generators/ops/merge_states.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

// A thread has a chunk of a row over all states; the statistics of a row are computed anew for each of its chunks, from
// L1.
Module merge_states_cuda(const OpSpec &spec) {
    MergeStatesDevice kernel(spec.type());
    RVar block{"block"}, thread{"thread"};
    int number = 0;
    for (MergeStatesDevice::Part &part : kernel.by_width) {
        kernel.named.update(number++)
            .split(part.all.y, block, thread, cuda_op_threads, TailStrategy::GuardWithIf)
            .reorder(part.all.x, thread, block)
            .gpu_blocks(block)
            .gpu_threads(thread)
            .unroll(part.all.x)
            .never_partition_all();
        for (Func f : {part.row_max, part.row_sum, part.num_keyed}) {
            f.compute_at(kernel.named, thread).store_in(MemoryType::Register).update().never_partition_all();
        }
        part.num_keyed.update().compute_with(part.row_sum.update(), part.over_states);
        part.sum.compute_at(kernel.named, thread)
            .store_in(MemoryType::Register)
            .unroll(part.d)
            .update()
            .reorder(part.d, part.over_states)
            .unroll(part.d)
            .never_partition_all();
        part.weights.compute_at(part.sum, part.over_states).store_in(MemoryType::Register);
    }
    return compile_cuda(spec, kernel);
}

}  // namespace heed
