// Memory of the emulated driver: allocations, copies, fills.
#include <cstring>

#include "tests/cuda_device/state.h"

using namespace heed::device;

namespace {

// Bytes of the context; null, and a sentence, where they are not all in one of its allocations.
uint8_t *find_bytes(const Context &context, CUdeviceptr address, size_t bytes, CUresult *code) {
    const Allocation *allocation = state().memory.find(address, bytes);
    if (allocation == nullptr) {
        *code = report(cuda_invalid_value, "there are no " + std::to_string(bytes) + " bytes of device memory at " +
                                               std::to_string(address));
        return nullptr;
    }
    if (allocation->owner != context.id) {
        *code = report(cuda_invalid_context, "the memory belongs to another context");
        return nullptr;
    }
    return allocation->pointer(address);
}

CUresult copy_in(const Context &context, CUdeviceptr to, const void *from, size_t bytes) {
    CUresult code = cuda_success;
    uint8_t *at = bytes == 0 ? nullptr : find_bytes(context, to, bytes, &code);
    if (at != nullptr) std::memcpy(at, from, bytes);
    return code;
}

CUresult copy_out(const Context &context, void *to, CUdeviceptr from, size_t bytes) {
    CUresult code = cuda_success;
    const uint8_t *at = bytes == 0 ? nullptr : find_bytes(context, from, bytes, &code);
    if (at != nullptr) std::memcpy(to, at, bytes);
    return code;
}

template <typename T>
CUresult fill(const Context &context, CUdeviceptr to, T value, size_t count) {
    CUresult code = cuda_success;
    if (to % sizeof(T) != 0) return report(cuda_invalid_value, "the memory to fill is not aligned");
    uint8_t *at = count == 0 ? nullptr : find_bytes(context, to, count * sizeof(T), &code);
    if (at == nullptr) return code;
    for (size_t i = 0; i < count; i++) std::memcpy(at + i * sizeof(T), &value, sizeof(T));
    return cuda_success;
}

// Calls without a stream wait for the device.
template <typename F>
CUresult synchronous(F f) {
    return in_context([&](Context &context) {
        if (breaks_capture())
            return report(cuda_capture_unsupported, "a synchronous operation while a stream captures");
        return submit(context, nullptr, [&context, f] { return f(context); });
    });
}

template <typename F>
CUresult on_stream(CUstream stream, F f) {
    return in_context([&](Context &context) { return submit(context, stream, [&context, f] { return f(context); }); });
}

}  // namespace

HEED_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    return in_context([&](Context &context) {
        if (breaks_capture()) return report(cuda_capture_unsupported, "cuMemAlloc while a stream captures");
        if (address == nullptr || bytes == 0) return CUresult{cuda_invalid_value};
        *address = state().memory.allocate(bytes, context.id);
        return CUresult{cuda_success};
    });
}

HEED_EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    return in_context([&](Context &context) {
        if (breaks_capture()) return report(cuda_capture_unsupported, "cuMemFree while a stream captures");
        if (address == 0) return CUresult{cuda_success};
        const Allocation *allocation = state().memory.find(address, 0);
        if (allocation == nullptr || allocation->address != address)
            return report(cuda_invalid_value, "cuMemFree: no allocation begins there");
        if (allocation->owner != context.id)
            return report(cuda_invalid_context, "the memory belongs to another context");
        state().memory.free(address);
        return CUresult{cuda_success};
    });
}

HEED_EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    return in_context([&](Context &) {
        *total = DeviceMemory::capacity;
        *free = DeviceMemory::capacity - state().memory.used();
        return CUresult{cuda_success};
    });
}

HEED_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes) {
    return synchronous([=](Context &context) { return copy_in(context, to, from, bytes); });
}

HEED_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes) {
    return synchronous([=](Context &context) { return copy_out(context, to, from, bytes); });
}

HEED_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
    return on_stream(stream, [=](Context &context) { return copy_in(context, to, from, bytes); });
}

HEED_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
    return on_stream(stream, [=](Context &context) { return copy_out(context, to, from, bytes); });
}

HEED_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return synchronous([=](Context &context) {
        CUresult code = cuda_success;
        const uint8_t *source = bytes == 0 ? nullptr : find_bytes(context, from, bytes, &code);
        return source == nullptr ? code : copy_in(context, to, source, bytes);
    });
}

HEED_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) {
    return synchronous([=](Context &context) { return fill(context, to, value, count); });
}

HEED_EXPORT CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return on_stream(stream, [=](Context &context) { return fill(context, to, value, count); });
}

HEED_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned value, size_t count) {
    return synchronous([=](Context &context) { return fill(context, to, value, count); });
}

HEED_EXPORT CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    return on_stream(stream, [=](Context &context) { return fill(context, to, value, count); });
}
