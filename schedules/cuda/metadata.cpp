#include "generators/ops/metadata.h"

#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

// A thread has an entry.
Module write_metadata_cuda(const OpSpec &spec) {
    WriteMetadataDevice kernel;
    kernel.named.update().gpu_blocks(kernel.all.y).gpu_threads(kernel.all.x);
    return compile_cuda(spec, kernel, metadata_threads);
}

// A thread has a sequence.
Module sequences_cuda(const OpSpec &spec) {
    SequencesDevice kernel;
    RVar block{"block"}, thread{"thread"};
    kernel.named.update()
        .split(kernel.all.y, block, thread, sequences_threads, TailStrategy::GuardWithIf)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .unroll(kernel.all.x)
        .never_partition_all();
    return compile_cuda(spec, kernel, sequences_threads);
}

}  // namespace heed
