#include "bench/demo/decode/device.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "bench/machine.h"

namespace heed_decode {

using heed_bench::wall_seconds;

Device::Device(heed_device kind) : kind_(kind) {
    if (kind == HEED_CPU) return;
    try {
        cuda_ = &heed_reference::CudaDevice::get();
    } catch (const std::runtime_error &error) {
        throw NoDevice(std::string("no CUDA driver with a device: ") + error.what());
    }
}

std::string Device::name() const { return cuda_ == nullptr ? "CPU" : cuda_->name(); }

// Work goes to the default stream, on which copies to and from the host wait.
void Device::synchronize() const {
    if (cuda_ != nullptr) cuda_->synchronize(nullptr);
}

double Device::copy_gbps(size_t bytes) const {
    void *const from = allocate(bytes), *const to = allocate(bytes);
    double best = 0;
    for (int n = 0; n < 10; n++) {
        synchronize();
        const double start = wall_seconds();
        cuda_->copy(to, from, bytes);
        synchronize();
        best = std::max(best, 2e-9 * static_cast<double>(bytes) / (wall_seconds() - start));
    }
    release(from);
    release(to);
    return best;
}

void *Device::allocate(size_t bytes) const {
    return cuda_ == nullptr ? ::operator new (bytes, std::align_val_t{128}) : cuda_->allocate(bytes);
}

void Device::release(void *data) const {
    if (cuda_ == nullptr) {
        ::operator delete (data, std::align_val_t{128});
    } else {
        cuda_->release(data);
    }
}

void Device::copy_in(void *to, const void *from, size_t bytes) const {
    if (cuda_ == nullptr) {
        std::memcpy(to, from, bytes);
    } else {
        cuda_->copy_to_device(to, from, bytes);
    }
}

void Device::copy_out(void *to, const void *from, size_t bytes) const {
    if (cuda_ == nullptr) {
        std::memcpy(to, from, bytes);
    } else {
        cuda_->copy_to_host(to, from, bytes);
    }
}

DeviceValues::DeviceValues(const Device &device, heed_dtype dtype, size_t size)
    : device_(device), dtype_(dtype), size_(size), data_(device.allocate(bytes_of(size))) {}

size_t DeviceValues::bytes_of(size_t elements) const {
    return elements * static_cast<size_t>(heed_reference::element_bytes(dtype_));
}

void DeviceValues::assign(const std::vector<float> &values) const {
    const Elements host(dtype_, values);
    device_.copy_in(data_, host.tensor().data, bytes_of(values.size()));
}

void DeviceValues::read(std::vector<float> *values) const {
    std::vector<char> host(bytes_of(values->size()));
    device_.copy_out(host.data(), data_, host.size());
    for (size_t i = 0; i < values->size(); i++) {
        (*values)[i] = heed_reference::load(host.data(), static_cast<int64_t>(i), dtype_);
    }
}

}  // namespace heed_decode
