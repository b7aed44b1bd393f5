#include "device.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "element.h"

namespace heed_decode {
namespace {

uint64_t address_of(const void *data) { return reinterpret_cast<uintptr_t>(data); }

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class Function>
void look_up(void *library, const char *name, Function *function) {
    void *const address = dlsym(library, name);
    if (address == nullptr) throw NoDevice(std::string("the CUDA driver has no ") + name);
    std::memcpy(function, &address, sizeof(address));
}

}  // namespace

// Work goes to the default stream, on which copies to and from the host wait.
struct Device::Driver {
    int (*get_name)(char *, int, int);
    int (*synchronize)();
    int (*allocate)(uint64_t *, size_t);
    int (*release)(uint64_t);
    int (*copy_in)(uint64_t, const void *, size_t);
    int (*copy_out)(void *, uint64_t, size_t);
    int (*copy)(uint64_t, uint64_t, size_t);

    static void check(int code, const char *call) {
        if (code != 0) throw std::runtime_error(std::string(call) + " fails with code " + std::to_string(code));
    }
};

Device::Device(heed_device kind) : kind_(kind) {
    if (kind == HEED_CPU) return;
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw NoDevice("no CUDA driver (libcuda.so.1) was found");
    auto driver = std::make_unique<Driver>();
    int (*init)(unsigned), (*count)(int *), (*retain)(void **, int), (*set_current)(void *);
    look_up(library, "cuInit", &init);
    look_up(library, "cuDeviceGetCount", &count);
    look_up(library, "cuDevicePrimaryCtxRetain", &retain);
    look_up(library, "cuCtxSetCurrent", &set_current);
    look_up(library, "cuDeviceGetName", &driver->get_name);
    look_up(library, "cuCtxSynchronize", &driver->synchronize);
    look_up(library, "cuMemAlloc_v2", &driver->allocate);
    look_up(library, "cuMemFree_v2", &driver->release);
    look_up(library, "cuMemcpyHtoD_v2", &driver->copy_in);
    look_up(library, "cuMemcpyDtoH_v2", &driver->copy_out);
    look_up(library, "cuMemcpyDtoD_v2", &driver->copy);
    int num_devices = 0;
    void *context = nullptr;
    if (init(0) != 0 || count(&num_devices) != 0 || num_devices == 0)
        throw NoDevice("the CUDA driver reports no device");
    Driver::check(retain(&context, 0), "cuDevicePrimaryCtxRetain");
    Driver::check(set_current(context), "cuCtxSetCurrent");
    driver_ = std::move(driver);
}

Device::~Device() = default;

std::string Device::name() const {
    char text[256] = "CPU";
    if (driver_ != nullptr) Driver::check(driver_->get_name(text, sizeof(text), 0), "cuDeviceGetName");
    return text;
}

void Device::synchronize() const {
    if (driver_ != nullptr) Driver::check(driver_->synchronize(), "cuCtxSynchronize");
}

double Device::copy_gbps(size_t bytes) const {
    void *const from = allocate(bytes), *const to = allocate(bytes);
    double best = 0;
    for (int n = 0; n < 10; n++) {
        synchronize();
        const double start = seconds();
        Driver::check(driver_->copy(address_of(to), address_of(from), bytes), "cuMemcpyDtoD");
        synchronize();
        best = std::max(best, 2e-9 * static_cast<double>(bytes) / (seconds() - start));
    }
    release(from);
    release(to);
    return best;
}

void *Device::allocate(size_t bytes) const {
    if (driver_ == nullptr) return ::operator new (bytes, std::align_val_t{128});
    uint64_t address = 0;
    Driver::check(driver_->allocate(&address, bytes), "cuMemAlloc");
    return reinterpret_cast<void *>(address);
}

void Device::release(void *data) const {
    if (driver_ == nullptr) {
        ::operator delete (data, std::align_val_t{128});
    } else {
        driver_->release(address_of(data));
    }
}

void Device::copy_in(void *to, const void *from, size_t bytes) const {
    if (driver_ == nullptr) {
        std::memcpy(to, from, bytes);
    } else {
        Driver::check(driver_->copy_in(address_of(to), from, bytes), "cuMemcpyHtoD");
    }
}

void Device::copy_out(void *to, const void *from, size_t bytes) const {
    if (driver_ == nullptr) {
        std::memcpy(to, from, bytes);
    } else {
        Driver::check(driver_->copy_out(to, address_of(from), bytes), "cuMemcpyDtoH");
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
