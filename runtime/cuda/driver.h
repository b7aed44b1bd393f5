// The CUDA driver, libcuda.so.1: found at run time, called through a table. Nothing here is touched by calls on the
// CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "heed/heed.h"

namespace heed::cuda {

// The driver's handles and codes, as its ABI has them.
using Context = struct CUctx_st *;
using Stream = struct CUstream_st *;
using Module = struct CUmod_st *;
using Function = struct CUfunc_st *;
using DeviceAddress = unsigned long long;

// An address of a device, or a handle, that the driver or a table has as an integer.
inline void *pointer_of(uint64_t word) {
    return reinterpret_cast<void *>(word);  // NOLINT(performance-no-int-to-ptr): the host reads nothing through it
}

constexpr const char *driver_library = "libcuda.so.1";

constexpr int success = 0, error_out_of_memory = 2, error_no_device = 100, error_invalid_context = 201,
              error_invalid_handle = 400, error_context_is_destroyed = 709;
constexpr int capture_relaxed = 2;
constexpr int function_max_dynamic_shared_bytes = 8;
constexpr int device_capability_major = 75, device_capability_minor = 76;

// name, symbol, parameters. ctx_get_device is of the current context.
#define HEED_DRIVER_FUNCTIONS(X)                                                                                       \
    X(init, "cuInit", (unsigned flags))                                                                                \
    X(get_error_name, "cuGetErrorName", (int code, const char **name))                                                 \
    X(get_error_string, "cuGetErrorString", (int code, const char **text))                                             \
    X(device_get_count, "cuDeviceGetCount", (int *count))                                                              \
    X(device_get_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))                           \
    X(ctx_get_current, "cuCtxGetCurrent", (Context * context))                                                         \
    X(ctx_get_device, "cuCtxGetDevice", (int *device))                                                                 \
    X(ctx_get_id, "cuCtxGetId", (Context context, unsigned long long *id))                                             \
    X(ctx_push_current, "cuCtxPushCurrent_v2", (Context context))                                                      \
    X(ctx_pop_current, "cuCtxPopCurrent_v2", (Context * context))                                                      \
    X(stream_get_ctx, "cuStreamGetCtx", (Stream stream, Context * context))                                            \
    X(stream_synchronize, "cuStreamSynchronize", (Stream stream))                                                      \
    X(mem_alloc, "cuMemAlloc_v2", (DeviceAddress * address, size_t bytes))                                             \
    X(mem_free, "cuMemFree_v2", (DeviceAddress address))                                                               \
    X(memcpy_to_device, "cuMemcpyHtoD_v2", (DeviceAddress to, const void *from, size_t bytes))                         \
    X(memset_async, "cuMemsetD8Async", (DeviceAddress to, unsigned char value, size_t bytes, Stream stream))           \
    X(thread_exchange_stream_capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                           \
    X(module_load_data, "cuModuleLoadData", (Module * module, const void *image))                                      \
    X(module_unload, "cuModuleUnload", (Module module))                                                                \
    X(module_get_function, "cuModuleGetFunction", (Function * function, Module module, const char *name))              \
    X(func_set_attribute, "cuFuncSetAttribute", (Function function, int attribute, int value))                         \
    X(launch_kernel, "cuLaunchKernel",                                                                                 \
      (Function function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,                 \
       unsigned threads_y, unsigned threads_z, unsigned shared_bytes, Stream stream, void **arguments, void **extra))

struct Driver {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a name that is declared, and a list that has them
#define HEED_DECLARE(name, symbol, parameters) int(*name) parameters;
    HEED_DRIVER_FUNCTIONS(HEED_DECLARE)
#undef HEED_DECLARE
};

// The driver, initialised; NULL where none serves this process, *reason then says why and lives as long as the library.
// The first call loads it and looks at the devices; what it found stays. Thread-safe, and no lock of Heed's is held: a
// child of fork never waits for a thread that it lacks. (The driver itself does not survive a fork: its calls then
// fail with its own error.)
const Driver *find_driver(const char **reason);

// find_driver, or NO_DEVICE, whose sentence names the caller's `field` that asks for CUDA.
heed_status open_driver(const char *field, const Driver **driver);

// The highest compute capability (10 * major + minor) of the devices; 0 without a driver.
int best_capability();

// HEED_OK, or the failure as this thread's error sentence: OUT_OF_MEMORY, NO_DEVICE or INTERNAL.
heed_status check(const Driver &driver, int code, const char *call);

}  // namespace heed::cuda
