// An emulated CUDA device for tests: libcuda.so.1, the part of the driver API that Heed uses, running PTX on the CPU.
//
// Kernels run exactly or not at all: an instruction that is not known fails cuModuleLoadData, which names the PTX line.
// What a kernel does wrong fails its launch with a sentence on stderr: kernel, block, thread, PTX line and text. Found
// are accesses outside of allocations or not aligned, shared memory that is read before it is written, touched between
// cp.async and its wait, or by two warps without a barrier, collective instructions that a part of a warp executes, and
// loops that do not end. After that every call returns the error until heed_device_reset().
//
// Launches that a driver refuses (too many threads, too much shared memory) are refused with CUDA_ERROR_INVALID_VALUE
// and do no harm. Shared memory begins at address 1024, as where the first KB is the system's: addresses come from
// symbols.
//
// Work runs inside the call that asks for it. f32 arithmetic is IEEE's, rounded to nearest; approximate functions are
// the rounded exact values; mma sums in double and rounds once. Not checked: races on global memory, races inside of a
// warp (bar.warp.sync orders nothing: what cp.async brought is for its thread until a barrier of the block).
//
// Environment: HEED_CUDA_DEVICES (1), HEED_CUDA_DEVICE_CAPABILITY (9.0), HEED_CUDA_DEVICE_OPTIONS (as configure below).
// For tests, by dlsym:
//   int heed_device_configure(const char *)     options, separated by commas; 0, or 1 where they are not understood:
//       order=default|ascending|descending|random:SEED   of blocks, and of warps between barriers
//       arrival=early|late                        when the data of cp.async lands: at issue, or at the wait
//       products=early|late                       when those of wgmma are made: where they are begun, or at the wait
//       checks=on|off                             the checks of shared memory that are not about bounds
//       steps=N                                   instructions a warp may execute
//       traffic=on|off                            whether sectors are counted
//   void heed_device_reset()                    forgets errors, counts
//   uint64_t heed_device_launches()             launches since the reset
//   uint64_t heed_device_instructions(prefix)   executed by warps since the reset; of opcodes that start so
//   uint64_t heed_device_sectors(written)       sectors of 32 bytes of global memory that accesses of warps read (0) or
//                                               wrote (1) since the reset, without any cache; with traffic=on
//   const char *heed_device_last_error()        valid until the next call of the thread
//   void heed_device_replace(from, to, n)       modules loaded from now on have occurrence n (-1: all) of `from`
//                                               replaced in their PTX, or fail to load without one; null: no more
#include <cstdio>
#include <cstring>

#include "tests/cuda_device/state.h"

using namespace heed::device;

namespace {

const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {cuda_success, "CUDA_SUCCESS", "no error"},
    {cuda_invalid_value, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {cuda_out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {cuda_not_initialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {cuda_no_device, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {cuda_invalid_device, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {cuda_invalid_image, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
    {cuda_invalid_context, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {cuda_no_binary_for_gpu, "CUDA_ERROR_NO_BINARY_FOR_GPU",
     "no kernel image is available for execution on the device"},
    {cuda_invalid_ptx, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {cuda_unsupported_ptx_version, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
     "the provided PTX was compiled with an unsupported toolchain."},
    {cuda_invalid_handle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {cuda_not_found, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {cuda_not_ready, "CUDA_ERROR_NOT_READY", "device not ready"},
    {cuda_illegal_address, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {cuda_launch_failed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {cuda_not_supported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {cuda_capture_unsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {cuda_capture_invalidated, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
     "operation failed due to a previous error during capture"},
    {cuda_capture_unmatched, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not initiated in this stream"},
    {cuda_capture_implicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cuda_capture_wrong_thread, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cuda_unknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

bool is_device(CUdevice device) { return device >= 0 && device < state().num_devices; }

// Null where the device's primary context is not retained.
Context *find_primary(CUdevice device) {
    Context *found = nullptr;
    state().contexts.for_each([&](const void *, Context &context) {
        if (context.primary && context.device == device) found = &context;
    });
    return found;
}

Context *make_context(CUdevice device, bool primary) {
    Context context;
    context.id = state().next_context++;
    context.device = device;
    context.primary = primary;
    void *handle = state().contexts.add(context);
    Context *made = state().contexts.find(handle);
    made->handle = reinterpret_cast<CUcontext>(handle);
    return made;
}

}  // namespace

HEED_EXPORT CUresult cuInit(unsigned flags) {
    if (flags != 0) return cuda_invalid_value;
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (state().num_devices <= 0) return cuda_no_device;
#ifdef __AVX2__
    if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0)
        return report(cuda_not_supported, "the emulated device was built for a CPU with AVX2 and FMA");
#endif
    state().initialized = true;
    return cuda_success;
}

HEED_EXPORT CUresult cuDriverGetVersion(int *version) {
    if (version == nullptr) return cuda_invalid_value;
    *version = 13000;
    return cuda_success;
}

HEED_EXPORT CUresult cuGetErrorName(CUresult code, const char **text) {
    for (const auto &error : errors)
        if (error.code == code) return *text = error.name, cuda_success;
    *text = nullptr;
    return cuda_invalid_value;
}

HEED_EXPORT CUresult cuGetErrorString(CUresult code, const char **text) {
    for (const auto &error : errors)
        if (error.code == code) return *text = error.text, cuda_success;
    *text = nullptr;
    return cuda_invalid_value;
}

HEED_EXPORT CUresult cuDeviceGetCount(int *count) {
    return locked([&] { return *count = state().num_devices, cuda_success; });
}

HEED_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    return locked([&] {
        if (!is_device(ordinal)) return cuda_invalid_device;
        *device = ordinal;
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    return locked([&] {
        if (!is_device(device)) return cuda_invalid_device;
        if (name == nullptr || length <= 0) return cuda_invalid_value;
        std::snprintf(name, static_cast<size_t>(length), "Heed emulated device, sm_%d", state().capability);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    return locked([&] {
        if (!is_device(device)) return cuda_invalid_device;
        const int capability = state().capability, shared = static_cast<int>(max_shared_bytes());
        switch (attribute) {
        case 1:
            *value = 1024;
            break;  // MAX_THREADS_PER_BLOCK
        case 8:
            *value = 48 * 1024;
            break;  // MAX_SHARED_MEMORY_PER_BLOCK
        case 10:
            *value = warp_size;
            break;  // WARP_SIZE
        case 16:
            *value = capability >= 90 ? 132 : 108;
            break;  // MULTIPROCESSOR_COUNT
        case 75:
            *value = capability / 10;
            break;  // COMPUTE_CAPABILITY_MAJOR
        case 76:
            *value = capability % 10;
            break;  // COMPUTE_CAPABILITY_MINOR
        case 81:
            *value = shared + 1024;
            break;  // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
        case 97:
            *value = shared;
            break;  // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
        default:
            return report(cuda_invalid_value, "device attribute " + std::to_string(attribute) + " is not there");
        }
        return CUresult{cuda_success};
    });
}

HEED_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    return locked([&] {
        if (!is_device(device)) return cuda_invalid_device;
        Context *primary = find_primary(device);
        if (primary == nullptr) primary = make_context(device, true);
        primary->retained++;
        *context = primary->handle;
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    return locked([&] {
        if (!is_device(device)) return cuda_invalid_device;
        Context *primary = find_primary(device);
        if (primary == nullptr) return cuda_invalid_context;
        if (--primary->retained == 0) destroy_context(primary->handle);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned, CUdevice device) {
    return locked([&] {
        if (!is_device(device)) return cuda_invalid_device;
        *context = make_context(device, false)->handle;
        context_stack().push_back(*context);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxDestroy_v2(CUcontext context) {
    return locked([&] {
        const Context *found = state().contexts.find(context);
        if (found == nullptr || found->primary) return cuda_invalid_context;
        if (current_handle() == context) context_stack().pop_back();
        destroy_context(context);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxGetCurrent(CUcontext *context) {
    return locked([&] { return *context = current_handle(), cuda_success; });
}

HEED_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    return locked([&] {
        std::vector<CUcontext> &stack = context_stack();
        if (context != nullptr && state().contexts.find(context) == nullptr) return cuda_invalid_context;
        if (!stack.empty()) stack.pop_back();
        if (context != nullptr) stack.push_back(context);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext context) {
    return locked([&] {
        if (state().contexts.find(context) == nullptr) return cuda_invalid_context;
        context_stack().push_back(context);
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    return locked([&] {
        const CUcontext current = current_handle();
        if (current == nullptr) return cuda_invalid_context;
        context_stack().pop_back();
        if (context != nullptr) *context = current;
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxGetId(CUcontext context, unsigned long long *id) {
    return locked([&] {
        const Context *found = context == nullptr ? current_context() : state().contexts.find(context);
        if (found == nullptr) return cuda_invalid_context;
        *id = found->id;
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
    return locked([&] {
        const Context *current = current_context();
        if (current == nullptr) return cuda_invalid_context;
        *device = current->device;
        return cuda_success;
    });
}

HEED_EXPORT CUresult cuCtxSynchronize() {
    return in_context([](Context &) {
        if (breaks_capture()) return report(cuda_capture_unsupported, "cuCtxSynchronize while a stream captures");
        return CUresult{cuda_success};
    });
}
