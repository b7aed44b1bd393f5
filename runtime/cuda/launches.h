// The launches of one heed_execute on CUDA, as generated host code makes them.
#pragma once

#include <algorithm>

#include "runtime/cuda/driver.h"
#include "runtime/halide_bridge.h"
#include "runtime/status.h"

namespace heed::cuda {

constexpr int64_t max_count = int64_t{1} << 30;  // rows, or elements, that a launch numbers with 32 bits

// Generated host code finds it through its user context (KernelContext::launches) when it calls halide_cuda_run.
struct Launches {
    const Driver &driver;
    Stream stream;                 // of the current context
    uint64_t context_id;           // of the current context
    int32_t count = 0;             // launches made by the running kernel
    heed_status status = HEED_OK;  // of the first failure, whose sentence is this thread's last error
};

// Run a kernel's host code, which makes one launch.
heed_status launch_kernel(const Kernel &kernel, const KernelCall &call, Launches &launches);
heed_status launch_op(const OpKernel &kernel, const ArgumentList &arguments, Launches &launches);
template <typename Arguments>
heed_status launch_op(const OpKernel &kernel, const Arguments &arguments, Launches &launches) {
    ArgumentList list;
    arguments.list_to(&list);
    return launch_op(kernel, list, launches);
}

inline uint64_t address_of(const void *data) { return reinterpret_cast<uintptr_t>(data); }

// Calls launch(first, count) for pieces of `elements` that a launch can number, whole chunks of 16 bytes but for the
// last, until one fails.
template <typename Launch>
heed_status launch_pieces(int64_t elements, const Launch &launch) {
    constexpr int64_t most = max_count - 16;
    heed_status status = HEED_OK;
    for (int64_t first = 0; first < elements && !status; first += most) {
        status = launch(first, static_cast<int32_t>(std::min(elements - first, most)));
    }
    return status;
}

// In bytes.
inline uint64_t stride_of(const KernelBuffer &buffer, int dimension) {
    return static_cast<uint64_t>(int64_t{buffer.stride[dimension]} * dtype_bytes(buffer.dtype));
}

// An output that only names the device: the kernel writes to addresses it was given.
inline KernelBuffer named(void *data) { return {data, HEED_U8, 1, {1}, {1}}; }

}  // namespace heed::cuda
