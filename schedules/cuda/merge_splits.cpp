#include "generators/ops/merge_splits.h"

#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

// A block has a row, a thread columns of it; each finds the maximum and the sum of the row by itself: a warp reads them
// as one word.
Module merge_splits_cuda(const OpSpec &spec) {
    MergeSplitsDevice kernel(spec.type());
    RVar pass{"pass"}, thread{"thread"};
    kernel.named.update()
        .split(kernel.all.x, pass, thread, merge_splits_threads, TailStrategy::GuardWithIf)
        .reorder(pass, thread, kernel.all.y)
        .gpu_blocks(kernel.all.y)
        .gpu_threads(thread)
        .never_partition_all();
    for (Func f : {kernel.split_max, kernel.row_sum, kernel.result}) {
        f.compute_at(kernel.named, thread).store_in(MemoryType::Register);
    }
    kernel.merged.compute_at(kernel.named, pass).store_in(MemoryType::Register);
    RVar four{"four"}, in_four{"in_four"};
    for (Func f : {kernel.split_max, kernel.row_sum, kernel.merged}) {
        f.update().split(kernel.over_splits, four, in_four, 4, TailStrategy::GuardWithIf).unroll(in_four);
    }
    return compile_cuda(spec, kernel, merge_splits_threads);
}

}  // namespace heed
