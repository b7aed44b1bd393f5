#pragma once
// What kernels report of metadata in device memory (heed_execute: device_status).

#include "device_code.h"
#include "index_math.h"
#include "intrinsics.h"

namespace heed::cuda {

constexpr int fault_of_pages = 4;

// The first fault stays; device_status is an address or 0.
inline void report_if(DeviceCode &code, const Halide::Expr &is_wrong, const Halide::Expr &device_status,
                      const Halide::Expr &sequence, const Halide::Expr &kind) {
    code.when(is_wrong && device_status != Halide::cast<uint64_t>(0),
              [&] { code.run(store_u32_if_zero(device_status, Halide::cast<uint32_t>(sequence * 8 + kind))); });
}

// The page that an entry of the page table names. An id outside of 0..num_pages-1 is clamped and reported: memory of
// the caller may hold anything.
inline Halide::Expr load_page_id(DeviceCode &code, const Halide::Expr &entry, const Halide::Expr &num_pages,
                                 const Halide::Expr &device_status, const Halide::Expr &sequence) {
    const Halide::Expr id = code.let("page_id", load_i32(entry));
    const Halide::Expr valid = code.let("valid_id", clamp(id, 0, num_pages - 1));
    report_if(code, id != valid, device_status, sequence, fault_of_pages);
    return valid;
}

}  // namespace heed::cuda
