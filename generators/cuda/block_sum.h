#pragma once
// Sums over the threads of a block.

#include "generators/cuda/device_code.h"
#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

// Adds up element 0 of `sum` of `threads` threads, in every one of them, in an order that depends on their number
// alone: the lanes of a warp, then the warps. `shared`: 4 bytes for each warp.
inline void sum_over_block(DeviceCode &code, const Registers &sum, const Halide::Expr &thread, int threads,
                           const Halide::Expr &shared) {
    for (const int mask : {1, 2, 4, 8, 16}) code.set(sum, 0, sum[0] + code.let("other", from_lane(sum[0], mask)));
    code.when(thread % 32 == 0,
              [&] { code.run(store_shared_u32(shared + thread / 32 * 4, Halide::reinterpret<uint32_t>(sum[0]))); });
    code.run(barrier());
    code.set(sum, 0, 0.f);
    for (int warp = 0; warp < threads / 32; warp++) {
        const Halide::Expr part = code.let("part", load_shared_u32(shared + 4 * warp));
        code.set(sum, 0, sum[0] + Halide::reinterpret<float>(part));
    }
}

}  // namespace heed::cuda
