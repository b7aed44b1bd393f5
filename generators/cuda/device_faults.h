#pragma once
// What kernels report of metadata in device memory (heed_execute: device_status).

#include "generators/cuda/device_code.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"

namespace heed::cuda {

constexpr int fault_of_pages = 4;

// The first fault stays; device_status is an address or 0.
inline void report_if(DeviceCode &code, const Halide::Expr &is_wrong, const Halide::Expr &device_status,
                      const Halide::Expr &sequence, const Halide::Expr &kind) {
    code.when(is_wrong && device_status != Halide::cast<uint64_t>(0),
              [&] { code.run(store_u32_if_zero(device_status, Halide::cast<uint32_t>(sequence * 8 + kind))); });
}

}  // namespace heed::cuda
