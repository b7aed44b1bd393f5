#include "runtime/reference/cuda_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "heed/fields.h"

namespace heed_reference {
namespace {

constexpr unsigned char guard_byte = 0xff;

template <class Function>
void look_up(void *library, const char *name, Function *function) {
    void *const address = dlsym(library, name);
    if (address == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    std::memcpy(function, &address, sizeof(address));
}

uint64_t address_of(const void *data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

struct CudaDevice::Driver {
    int (*get_error_name)(int, const char **);
    int (*set_current)(void *);
    int (*synchronize)(void *);
    int (*make_stream)(void **, unsigned);
    int (*make_context)(void **, unsigned, int);
    int (*pop_current)(void **);
    int (*memory_info)(size_t *, size_t *);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*launch_graph)(void *, void *);
    int (*allocate)(uint64_t *, size_t);
    int (*release)(uint64_t);
    int (*copy_to_device)(uint64_t, const void *, size_t);
    int (*copy_to_host)(void *, uint64_t, size_t);
    int (*copy)(uint64_t, uint64_t, size_t);
    int (*get_name)(char *, int, int);
    void *context = nullptr, *stream = nullptr;
    int capability = 0;

    void check(int code, const char *call) const {
        const char *name = nullptr;
        if (code == 0) return;
        if (get_error_name(code, &name) != 0 || name == nullptr) name = "an unknown error";
        throw std::runtime_error(std::string(call) + ": " + name);
    }
    void enter() const { check(set_current(context), "cuCtxSetCurrent"); }
};

CudaDevice &CudaDevice::get() {
    static auto *const device = new CudaDevice;  // stays until the process ends
    return *device;
}

CudaDevice::CudaDevice() {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) throw std::runtime_error("no libcuda.so.1");
    auto driver = std::make_unique<Driver>();
    int (*init)(unsigned), (*get_device)(int *, int), (*retain)(void **, int), (*attribute)(int *, int, int);
    look_up(library, "cuInit", &init);
    look_up(library, "cuDeviceGet", &get_device);
    look_up(library, "cuDeviceGetAttribute", &attribute);
    look_up(library, "cuDevicePrimaryCtxRetain", &retain);
    look_up(library, "cuStreamCreate", &driver->make_stream);
    look_up(library, "cuCtxCreate_v2", &driver->make_context);
    look_up(library, "cuCtxPopCurrent_v2", &driver->pop_current);
    look_up(library, "cuMemGetInfo_v2", &driver->memory_info);
    look_up(library, "cuStreamBeginCapture_v2", &driver->begin_capture);
    look_up(library, "cuStreamEndCapture", &driver->end_capture);
    look_up(library, "cuGraphInstantiateWithFlags", &driver->instantiate);
    look_up(library, "cuGraphLaunch", &driver->launch_graph);
    look_up(library, "cuGetErrorName", &driver->get_error_name);
    look_up(library, "cuCtxSetCurrent", &driver->set_current);
    look_up(library, "cuStreamSynchronize", &driver->synchronize);
    look_up(library, "cuMemAlloc_v2", &driver->allocate);
    look_up(library, "cuMemFree_v2", &driver->release);
    look_up(library, "cuMemcpyHtoD_v2", &driver->copy_to_device);
    look_up(library, "cuMemcpyDtoH_v2", &driver->copy_to_host);
    look_up(library, "cuMemcpyDtoD_v2", &driver->copy);
    look_up(library, "cuDeviceGetName", &driver->get_name);
    int device = 0, major = 0, minor = 0;
    driver->check(init(0), "cuInit");
    driver->check(get_device(&device, 0), "cuDeviceGet");
    driver->check(attribute(&major, 75, device), "cuDeviceGetAttribute");
    driver->check(attribute(&minor, 76, device), "cuDeviceGetAttribute");
    driver->check(retain(&driver->context, device), "cuDevicePrimaryCtxRetain");
    driver->enter();
    driver->check(driver->make_stream(&driver->stream, 0), "cuStreamCreate");
    driver->capability = 10 * major + minor;
    driver_ = std::move(driver);
}

std::string CudaDevice::name() const {
    char text[256] = "";
    driver_->check(driver_->get_name(text, sizeof(text), 0), "cuDeviceGetName");
    return text;
}

int CudaDevice::capability() const { return driver_->capability; }
void *CudaDevice::stream() const { return driver_->stream; }

void CudaDevice::synchronize() const { synchronize(driver_->stream); }

void CudaDevice::synchronize(void *stream) const {
    driver_->enter();
    driver_->check(driver_->synchronize(stream), "cuStreamSynchronize");
}

void *CudaDevice::make_stream() const {
    void *stream = nullptr;
    constexpr unsigned non_blocking = 1;
    driver_->enter();
    driver_->check(driver_->make_stream(&stream, non_blocking), "cuStreamCreate");
    return stream;
}

void *CudaDevice::make_context() const {
    void *context = nullptr, *popped = nullptr;
    driver_->check(driver_->make_context(&context, 0, 0), "cuCtxCreate");
    driver_->check(driver_->pop_current(&popped), "cuCtxPopCurrent");
    return context;
}

void CudaDevice::set_current(void *context) const { driver_->check(driver_->set_current(context), "cuCtxSetCurrent"); }

size_t CudaDevice::free_bytes() const {
    size_t free = 0, total = 0;
    driver_->enter();
    driver_->check(driver_->memory_info(&free, &total), "cuMemGetInfo");
    return free;
}

void *CudaDevice::capture(void *stream, const std::function<void()> &work) const {
    void *graph = nullptr, *executable = nullptr;
    constexpr int global = 0;
    driver_->enter();
    driver_->check(driver_->begin_capture(stream, global), "cuStreamBeginCapture");
    work();
    driver_->check(driver_->end_capture(stream, &graph), "cuStreamEndCapture");
    driver_->check(driver_->instantiate(&executable, graph, 0), "cuGraphInstantiate");
    return executable;
}

void CudaDevice::replay(void *graph, void *stream) const {
    driver_->enter();
    driver_->check(driver_->launch_graph(graph, stream), "cuGraphLaunch");
}

void *CudaDevice::allocate(size_t bytes) const {
    uint64_t address = 0;
    driver_->enter();
    driver_->check(driver_->allocate(&address, std::max<size_t>(bytes, 1)), "cuMemAlloc");
    return reinterpret_cast<void *>(address);  // NOLINT(performance-no-int-to-ptr): the host reads nothing through it
}

void CudaDevice::release(void *data) const {
    driver_->enter();
    driver_->check(driver_->release(address_of(data)), "cuMemFree");
}

void CudaDevice::copy_to_device(void *to, const void *from, size_t bytes) const {
    if (bytes == 0) return;
    driver_->enter();
    driver_->check(driver_->copy_to_device(address_of(to), from, bytes), "cuMemcpyHtoD");
}

void CudaDevice::copy_to_host(void *to, const void *from, size_t bytes) const {
    if (bytes == 0) return;
    driver_->enter();
    driver_->check(driver_->copy_to_host(to, address_of(from), bytes), "cuMemcpyDtoH");
}

void CudaDevice::copy(void *to, const void *from, size_t bytes) const {
    driver_->enter();
    driver_->check(driver_->copy(address_of(to), address_of(from), bytes), "cuMemcpyDtoD");
}

DeviceBuffer::DeviceBuffer(size_t bytes, size_t skew, bool guarded)
    : bytes_(bytes), before_(skew + (guarded ? guard : 0)), behind_(guarded ? guard : 0) {
    const CudaDevice &device = CudaDevice::get();
    begin_ = static_cast<unsigned char *>(device.allocate(before_ + bytes_ + behind_));
    const std::vector<unsigned char> content(before_ + bytes_ + behind_, guard_byte);
    device.copy_to_device(begin_, content.data(), content.size());
}

DeviceBuffer::~DeviceBuffer() {
    try {
        CudaDevice::get().release(begin_);
    } catch (const std::runtime_error &) {  // after a fault nothing can be given back
    }
}

bool DeviceBuffer::guards_intact() const {
    std::vector<unsigned char> content(before_ + bytes_ + behind_);
    CudaDevice::get().copy_to_host(content.data(), begin_, content.size());
    const auto intact = [](unsigned char byte) { return byte == guard_byte; };
    return std::all_of(content.data(), content.data() + before_, intact) &&
           std::all_of(content.data() + before_ + bytes_, content.data() + content.size(), intact);
}

void DeviceMirror::add(void *host, size_t bytes, bool written) {
    if (bytes == 0) return;
    copies_.push_back({static_cast<unsigned char *>(host), bytes, written,
                       std::make_unique<DeviceBuffer>(bytes, address_of(host) % 16, written)});
    CudaDevice::get().copy_to_device(copies_.back().device->data(), host, bytes);
}

void *DeviceMirror::find(void *host) const {
    for (const Copy &copy : copies_) {
        const uint64_t offset = address_of(host) - address_of(copy.host);
        if (offset < copy.bytes) return static_cast<unsigned char *>(copy.device->data()) + offset;
    }
    return host;
}

bool DeviceMirror::bring_back() const {
    bool intact = true;
    for (const Copy &copy : copies_) {
        if (!copy.written) continue;
        CudaDevice::get().copy_to_host(copy.host, copy.device->data(), copy.bytes);
        intact = intact && copy.device->guards_intact();
    }
    return intact;
}

heed_args on_device(const DeviceMirror &mirror, const heed_args &args) {
    heed_args result = args;
    for (heed_tensor *tensor : {&result.q, &result.k, &result.v, &result.out, &result.lse, &result.mask, &result.bias,
                                &result.k_scale, &result.v_scale}) {
        tensor->data = mirror.on_device(tensor->data);
    }
    for (heed_tensor &words : result.score_buffers) words.data = mirror.on_device(words.data);
    result.device_status = mirror.on_device(args.device_status);
#define HEED_MOVE(name, ...) result.name = mirror.on_device(args.name);
    HEED_METADATA_ARRAYS(HEED_MOVE)
    HEED_HEAD_ARRAYS(HEED_MOVE)
#undef HEED_MOVE
    result.workspace = mirror.on_device(args.workspace);
    result.stream = CudaDevice::get().stream();
    return result;
}

}  // namespace heed_reference
