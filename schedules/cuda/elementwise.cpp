#include "generators/ops/add.h"
#include "generators/ops/clip.h"
#include "generators/ops/copy_rows.h"
#include "generators/ops/key_padding.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

// A thread has a chunk.
template <typename Kernel>
Module elementwise(const OpSpec &spec) {
    Kernel kernel(spec.type());
    RVar block{"block"}, thread{"thread"};
    for (int i = 0; i < kernel.parts; i++) {
        const RDom &all = kernel.all[static_cast<size_t>(i)];
        kernel.named.update(i)
            .split(all.y, block, thread, cuda_op_threads, TailStrategy::GuardWithIf)
            .gpu_blocks(block)
            .gpu_threads(thread)
            .unroll(all.x)
            .never_partition_all();
    }
    return compile_cuda(spec, kernel);
}

// A thread has an element of a line.
void schedule_lines(Func &named, const RDom &all) {
    RVar block{"block"}, thread{"thread"}, blocks{"blocks"};
    named.update()
        .split(all.x, block, thread, cuda_op_threads, TailStrategy::GuardWithIf)
        .fuse(block, all.y, blocks)
        .gpu_blocks(blocks)
        .gpu_threads(thread)
        .never_partition_all();
}

}  // namespace

Module clip_cuda(const OpSpec &spec) { return elementwise<ClipDevice>(spec); }
Module clip_gradient_cuda(const OpSpec &spec) { return elementwise<ClipGradientDevice>(spec); }

Module add_cuda(const OpSpec &spec) {
    AddDevice kernel(spec.type());
    schedule_lines(kernel.named, kernel.all);
    return compile_cuda(spec, kernel);
}

Module key_padding_cuda(const OpSpec &spec) {
    KeyPaddingDevice kernel;
    schedule_lines(kernel.named, kernel.all);
    return compile_cuda(spec, kernel);
}

// A warp has a row, a lane chunks of it.
Module copy_rows_cuda(const OpSpec &spec) {
    CopyRowsDevice kernel(spec.type());
    RVar round{"round"}, lane{"lane"}, block{"block"}, warp{"warp"}, thread{"thread"};
    for (int i = 0; i < kernel.parts; i++) {
        const RDom &all = kernel.all[static_cast<size_t>(i)];
        kernel.hidden[static_cast<size_t>(i)].compute_at(kernel.named, thread).store_in(MemoryType::Register);
        kernel.named.update(i)
            .split(all.y, round, lane, 32, TailStrategy::GuardWithIf)
            .split(all.z, block, warp, cuda_op_threads / 32, TailStrategy::GuardWithIf)
            .reorder(all.x, round, lane, warp, block)
            .fuse(lane, warp, thread)
            .gpu_blocks(block)
            .gpu_threads(thread)
            .unroll(all.x)
            .never_partition_all();
    }
    return compile_cuda(spec, kernel);
}

}  // namespace heed
