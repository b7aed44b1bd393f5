#include "generators/ops/rope_device.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

// A thread has a chunk of a row, or as many pairs as make one or two; both elements of a pair are read before either is
// stored.
Module moved_cuda(const OpSpec &spec) {
    RopeDevice kernel(spec.type());
    RVar block{"block"}, thread{"thread"};
    int number = 0;
    for (RopeDevice::Part &part : kernel.by_part) {
        kernel.named.update(number++)
            .split(part.all.y, block, thread, cuda_op_threads, TailStrategy::GuardWithIf)
            .reorder(part.all.x, part.all.w, thread, block, part.all.z)
            .gpu_blocks(block, part.all.z)
            .gpu_threads(thread)
            .unroll(part.all.x)
            .unroll(part.all.w)
            .never_partition_all();
    }
    return compile_cuda(spec, kernel);
}

}  // namespace

Module rope_cuda(const OpSpec &spec) { return moved_cuda(spec); }

// Rows of bytes.
Module kv_copy_cuda(const OpSpec &spec) {
    OpSpec bytes = spec;
    bytes.dtype = name_of(ElementType::i8);
    return moved_cuda(bytes);
}

}  // namespace heed
