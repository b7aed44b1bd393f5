#include "generators/ops/kv_append_device.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

// A warp has a row, a lane chunks of it: its largest magnitude, then its codes. The second pass reads from L1.
Module kv_append_cuda(const OpSpec &spec) {
    KvAppendDevice kernel(spec.type());
    RVar round{"round"}, lane{"lane"}, block{"block"}, warp{"warp"}, thread{"thread"}, lanes{"lanes"};
    int number = 0;
    for (KvAppendDevice::Part &part : kernel.by_part) {
        kernel.named.update(number++)
            .split(part.all.y, round, lane, 32, TailStrategy::GuardWithIf)
            .split(part.all.z, block, warp, cuda_op_threads / 32, TailStrategy::GuardWithIf)
            .reorder(part.all.x, round, lane, warp, block, part.all.w)
            .fuse(lane, warp, thread)
            .gpu_blocks(block, part.all.w)
            .gpu_threads(thread)
            .unroll(part.all.x)
            .never_partition_all();
        Quantisation &rows = part.quantisation;
        for (Func f : {rows.scale, rows.magnitude}) {
            for (const Var &one : {kernel.head, kernel.token, kernel.segment}) f.bound_extent(one, 1);
        }
        rows.scale.compute_at(kernel.named, thread).store_in(MemoryType::Register);
        rows.magnitude.compute_at(kernel.named, thread)
            .store_in(MemoryType::Register)
            .update()
            .split(rows.over_d.y, round, lanes, 32, TailStrategy::GuardWithIf)
            .reorder(rows.over_d.x, round, lanes)
            .unroll(rows.over_d.x)
            .never_partition_all();
    }
    return compile_cuda(spec, kernel);
}

}  // namespace heed
