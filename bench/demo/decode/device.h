// Where the demo computes, and memory there.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "bench/elements.h"
#include "heed/heed.hpp"
#include "runtime/reference/cuda_device.h"

namespace heed_decode {

using heed_bench::Elements;

// There is no CUDA driver, or no device.
struct NoDevice : std::runtime_error {
    using std::runtime_error::runtime_error;
};

class Device {
public:
    // HEED_CUDA: the first device's primary context becomes current on this thread. Throws NoDevice.
    explicit Device(heed_device kind);

    heed_device kind() const { return kind_; }
    std::string name() const;
    void synchronize() const;
    // CUDA: GB/s at which device memory is copied, read and written, in a copy of so many bytes.
    double copy_gbps(size_t bytes) const;

    void *allocate(size_t bytes) const;
    void release(void *data) const;
    void copy_in(void *to, const void *from, size_t bytes) const;
    void copy_out(void *to, const void *from, size_t bytes) const;

private:
    heed_device kind_;
    const heed_reference::CudaDevice *cuda_ = nullptr;
};

// Elements where the demo computes, f32 or f16, to and from floats on the host.
class DeviceValues {
public:
    DeviceValues(const Device &device, heed_dtype dtype, size_t size);
    ~DeviceValues() { device_.release(data_); }
    DeviceValues(const DeviceValues &) = delete;
    DeviceValues &operator=(const DeviceValues &) = delete;

    heed_tensor tensor() const { return {data_, static_cast<int64_t>(size_), dtype_}; }
    void assign(const std::vector<float> &values) const;  // the first ones
    void read(std::vector<float> *values) const;          // as many as `values` has

private:
    size_t bytes_of(size_t elements) const;

    const Device &device_;
    const heed_dtype dtype_;
    const size_t size_;
    void *const data_;
};

}  // namespace heed_decode
