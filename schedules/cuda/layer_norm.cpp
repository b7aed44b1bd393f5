#include "generators/ops/layer_norm_gradient.h"
#include "schedules/cuda/operation.h"

namespace heed {

using namespace Halide;

namespace {

// A warp has a row, in several passes; a lane has chunks of it, 32 chunks apart. After the first pass a row comes from
// L1: the kernel moves each byte in and out once.
void schedule_rows(Func &named, int number, const RDom &all, const RDom &over_d, const std::vector<Func> &sums,
                   const std::vector<Func> &values) {
    RVar round{"round"}, lane{"lane"}, block{"block"}, warp{"warp"}, thread{"thread"}, lanes{"lanes"};
    named.update(number)
        .split(all.y, round, lane, 32, TailStrategy::GuardWithIf)
        .split(all.z, block, warp, cuda_op_threads / 32, TailStrategy::GuardWithIf)
        .reorder(all.x, round, lane, warp, block)
        .fuse(lane, warp, thread)
        .gpu_blocks(block)
        .gpu_threads(thread)
        .unroll(all.x)
        .never_partition_all();
    for (Func f : sums) {
        f.compute_at(named, thread)
            .store_in(MemoryType::Register)
            .update()
            .split(over_d.y, round, lanes, 32, TailStrategy::GuardWithIf)
            .reorder(over_d.x, round, lanes)
            .unroll(over_d.x)
            .never_partition_all();
    }
    for (Func f : values) f.compute_at(named, thread).store_in(MemoryType::Register);
}

}  // namespace

Module layer_norm_cuda(const OpSpec &spec) {
    LayerNormDevice kernel(spec.type());
    int number = 0;
    for (LayerNormDevice::Part &p : kernel.by_width) {
        schedule_rows(kernel.named, number++, p.all, p.over_d, {p.sum, p.squares}, {p.mean, p.factor});
    }
    return compile_cuda(spec, kernel);
}

Module layer_norm_gradient_cuda(const OpSpec &spec) {
    LayerNormGradientDevice kernel(spec.type());
    int number = 0;
    for (LayerNormGradientDevice::Part &p : kernel.by_width) {
        schedule_rows(kernel.named, number++, p.all, p.over_d, {p.sum, p.squares, p.sum_g, p.sum_gn},
                      {p.mean, p.factor});
    }
    return compile_cuda(spec, kernel);
}

}  // namespace heed
