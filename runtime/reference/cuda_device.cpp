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

uint64_t address_of(const void *data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

struct CudaDevice::Driver {
    // A function of the driver; throws its word for what failed.
    template <class... Arguments>
    class Call {
    public:
        Call(const Driver &driver, const char *name) : driver_(driver), name_(name) {
            driver.look_up(name, &function_);
        }
        void operator()(Arguments... arguments) const { driver_.check(function_(arguments...), name_); }

    private:
        const Driver &driver_;
        const char *const name_;
        int (*function_)(Arguments...) = nullptr;
    };

    Driver() {
        look_up("cuGetErrorName", &get_error_name);
        int device = 0, major = 0, minor = 0;
        Call<unsigned>(*this, "cuInit")(0);
        Call<int *, int>(*this, "cuDeviceGet")(&device, 0);
        const Call<int *, int, int> attribute(*this, "cuDeviceGetAttribute");
        attribute(&major, 75, device);
        attribute(&minor, 76, device);
        capability = 10 * major + minor;
        Call<void **, int>(*this, "cuDevicePrimaryCtxRetain")(&context, device);
        set_current(context);
        make_stream(&stream, 0);
    }

    static void *open() {
        void *const library = dlopen("libcuda.so.1", RTLD_NOW);
        return library != nullptr ? library : throw std::runtime_error("no libcuda.so.1");
    }

    template <class Function>
    void look_up(const char *name, Function *function) const {
        void *const address = dlsym(library, name);
        if (address == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
        std::memcpy(function, &address, sizeof(address));
    }

    void check(int code, const char *call) const {
        const char *name = nullptr;
        if (code == 0) return;
        if (get_error_name(code, &name) != 0 || name == nullptr) name = "an unknown error";
        throw std::runtime_error(std::string(call) + ": " + name);
    }

    // The driver once the device's own context is current.
    const Driver &entered() const {
        set_current(context);
        return *this;
    }

    void *const library = open();
    int (*get_error_name)(int, const char **) = nullptr;
    void *context = nullptr, *stream = nullptr;
    int capability = 0;

    const Call<void *> set_current{*this, "cuCtxSetCurrent"};
    const Call<void *> synchronize{*this, "cuStreamSynchronize"};
    const Call<void **, unsigned> make_stream{*this, "cuStreamCreate"};
    const Call<void **, unsigned, int> make_context{*this, "cuCtxCreate_v2"};
    const Call<void **> pop_current{*this, "cuCtxPopCurrent_v2"};
    const Call<size_t *, size_t *> memory_info{*this, "cuMemGetInfo_v2"};
    const Call<void *, int> begin_capture{*this, "cuStreamBeginCapture_v2"};
    const Call<void *, void **> end_capture{*this, "cuStreamEndCapture"};
    const Call<void **, void *, unsigned long long> instantiate{*this, "cuGraphInstantiateWithFlags"};
    const Call<void *, void *> launch_graph{*this, "cuGraphLaunch"};
    const Call<uint64_t *, size_t> allocate{*this, "cuMemAlloc_v2"};
    const Call<uint64_t> release{*this, "cuMemFree_v2"};
    const Call<uint64_t, const void *, size_t> copy_to_device{*this, "cuMemcpyHtoD_v2"};
    const Call<void *, uint64_t, size_t> copy_to_host{*this, "cuMemcpyDtoH_v2"};
    const Call<uint64_t, uint64_t, size_t> copy{*this, "cuMemcpyDtoD_v2"};
    const Call<char *, int, int> get_name{*this, "cuDeviceGetName"};
};

CudaDevice &CudaDevice::get() {
    static auto *const device = new CudaDevice;  // stays until the process ends
    return *device;
}

CudaDevice::CudaDevice() : driver_(std::make_unique<const Driver>()) {}

std::string CudaDevice::name() const {
    char text[256] = "";
    driver_->get_name(text, sizeof(text), 0);
    return text;
}

int CudaDevice::capability() const { return driver_->capability; }
void *CudaDevice::stream() const { return driver_->stream; }

void CudaDevice::synchronize() const { synchronize(driver_->stream); }

void CudaDevice::synchronize(void *stream) const { driver_->entered().synchronize(stream); }

void *CudaDevice::make_stream() const {
    void *stream = nullptr;
    constexpr unsigned non_blocking = 1;
    driver_->entered().make_stream(&stream, non_blocking);
    return stream;
}

void *CudaDevice::make_context() const {
    void *context = nullptr, *popped = nullptr;
    driver_->make_context(&context, 0, 0);
    driver_->pop_current(&popped);
    return context;
}

void CudaDevice::set_current(void *context) const { driver_->set_current(context); }

size_t CudaDevice::free_bytes() const {
    size_t free = 0, total = 0;
    driver_->entered().memory_info(&free, &total);
    return free;
}

void *CudaDevice::capture(void *stream, const std::function<void()> &work) const {
    void *graph = nullptr, *executable = nullptr;
    constexpr int global = 0;
    driver_->entered().begin_capture(stream, global);
    work();
    driver_->end_capture(stream, &graph);
    driver_->instantiate(&executable, graph, 0);
    return executable;
}

void CudaDevice::replay(void *graph, void *stream) const { driver_->entered().launch_graph(graph, stream); }

void *CudaDevice::allocate(size_t bytes) const {
    uint64_t address = 0;
    driver_->entered().allocate(&address, std::max<size_t>(bytes, 1));
    return reinterpret_cast<void *>(address);  // NOLINT(performance-no-int-to-ptr): the host reads nothing through it
}

void CudaDevice::release(void *data) const { driver_->entered().release(address_of(data)); }

void CudaDevice::copy_to_device(void *to, const void *from, size_t bytes) const {
    if (bytes > 0) driver_->entered().copy_to_device(address_of(to), from, bytes);
}

void CudaDevice::copy_to_host(void *to, const void *from, size_t bytes) const {
    if (bytes > 0) driver_->entered().copy_to_host(to, address_of(from), bytes);
}

void CudaDevice::copy(void *to, const void *from, size_t bytes) const {
    driver_->entered().copy(address_of(to), address_of(from), bytes);
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
