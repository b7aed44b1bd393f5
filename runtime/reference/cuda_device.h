// A CUDA device and memory on it, by libcuda.so.1: a GPU's driver, or an emulated device.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "heed/heed.h"

namespace heed_reference {

// The first CUDA device, with its primary context and a stream. Functions throw std::runtime_error with the driver's
// word for what failed.
class CudaDevice {
public:
    static CudaDevice &get();

    std::string name() const;
    int capability() const;  // 10 * major + minor
    void *stream() const;
    void synchronize() const;
    // Another stream and its work; another context of the device, which does not become current.
    void *make_stream() const;
    void synchronize(void *stream) const;
    void *make_context() const;
    // The current context of this thread; NULL: none.
    void set_current(void *context) const;
    size_t free_bytes() const;

    // What `work` enqueues on the stream, as a graph; and its replays there. Graphs live as long as the process.
    void *capture(void *stream, const std::function<void()> &work) const;
    void replay(void *graph, void *stream) const;

    // On any thread.
    void *allocate(size_t bytes) const;
    void release(void *data) const;
    void copy_to_device(void *to, const void *from, size_t bytes) const;
    void copy_to_host(void *to, const void *from, size_t bytes) const;
    // On the device; may still run when it returns.
    void copy(void *to, const void *from, size_t bytes) const;

private:
    CudaDevice();
    ~CudaDevice() = default;
    struct Driver;
    std::unique_ptr<const Driver> driver_;
};

// Memory on the device.
class DeviceBuffer {
public:
    // What is around written memory, and what it holds.
    static constexpr size_t guard = 256;

    // `bytes` bytes, `skew` bytes after a multiple of 256, with nothing after them. `guarded`: between guards.
    DeviceBuffer(size_t bytes, size_t skew, bool guarded);
    ~DeviceBuffer();
    DeviceBuffer(const DeviceBuffer &) = delete;
    DeviceBuffer &operator=(const DeviceBuffer &) = delete;

    void *data() const { return begin_ + before_; }
    bool guards_intact() const;

private:
    unsigned char *begin_ = nullptr;
    size_t bytes_, before_, behind_;
};

// Copies of host memory on the device.
class DeviceMirror {
public:
    // Copies `bytes` of host memory, to the same place modulo 16 bytes; what is `written` is between guards.
    void add(void *host, size_t bytes, bool written);

    // The copy's address; a pointer to nothing that was added comes back as it is.
    template <class T>
    T *on_device(T *host) const {
        return static_cast<T *>(find(const_cast<void *>(static_cast<const void *>(host))));
    }

    // Copies what is written back to the host; whether the guards around it are intact.
    bool bring_back() const;

private:
    struct Copy {
        unsigned char *host;
        size_t bytes;
        bool written;
        std::unique_ptr<DeviceBuffer> device;
    };
    void *find(void *host) const;
    std::vector<Copy> copies_;
};

// `args` with the addresses of the copies, on the device's stream.
heed_args on_device(const DeviceMirror &mirror, const heed_args &args);

}  // namespace heed_reference
