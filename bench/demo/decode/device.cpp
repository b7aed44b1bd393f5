#include "bench/demo/decode/device.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "runtime/reference/element.h"

namespace heed_decode {
namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

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
        const double start = seconds();
        cuda_->copy(to, from, bytes);
        synchronize();
        best = std::max(best, 2e-9 * static_cast<double>(bytes) / (seconds() - start));
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
    : device_(device), dtype_(dtype), size_(size),
      data_(device.allocate(size * static_cast<size_t>(heed_reference::element_bytes(dtype)))) {}

void DeviceValues::assign(const std::vector<float> &values) const {
    const HostValues host(values, dtype_);
    const size_t bytes = values.size() * static_cast<size_t>(heed_reference::element_bytes(dtype_));
    device_.copy_in(data_, host.tensor().data, bytes);
}

void DeviceValues::read(std::vector<float> *values) const {
    if (dtype_ == HEED_F32) return device_.copy_out(values->data(), data_, values->size() * sizeof(float));
    std::vector<uint16_t> bits(values->size());
    device_.copy_out(bits.data(), data_, bits.size() * sizeof(uint16_t));
    for (size_t i = 0; i < bits.size(); i++) (*values)[i] = heed_reference::from_bits(dtype_, bits[i]);
}

HostValues::HostValues(const std::vector<float> &values, heed_dtype type) : dtype(type) {
    if (type == HEED_F32) {
        wide = values;
        return;
    }
    for (const float x : values) narrow.push_back(heed_reference::to_bits(type, x));
}

heed_tensor HostValues::tensor() const {
    return dtype == HEED_F32 ? heed::tensor(wide.data(), wide.size())
                             : heed::tensor(narrow.data(), narrow.size(), dtype);
}

}  // namespace heed_decode
