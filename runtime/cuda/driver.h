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

constexpr int success = 0, error_out_of_memory = 2, error_no_device = 100, error_invalid_context = 201,
              error_invalid_handle = 400, error_context_is_destroyed = 709;
constexpr int capture_relaxed = 2;
constexpr int function_max_dynamic_shared_bytes = 8;
constexpr int device_capability_major = 75, device_capability_minor = 76;

struct Driver {
    int (*init)(unsigned flags);
    int (*get_error_name)(int code, const char **name);
    int (*get_error_string)(int code, const char **text);
    int (*device_get_count)(int *count);
    int (*device_get_attribute)(int *value, int attribute, int device);
    int (*ctx_get_current)(Context *context);
    int (*ctx_get_device)(int *device);  // of the current context
    int (*ctx_get_id)(Context context, unsigned long long *id);
    int (*ctx_push_current)(Context context);
    int (*ctx_pop_current)(Context *context);
    int (*stream_get_ctx)(Stream stream, Context *context);
    int (*stream_synchronize)(Stream stream);
    int (*mem_alloc)(DeviceAddress *address, size_t bytes);
    int (*mem_free)(DeviceAddress address);
    int (*memcpy_to_device)(DeviceAddress to, const void *from, size_t bytes);
    int (*memset_async)(DeviceAddress to, unsigned char value, size_t bytes, Stream stream);
    int (*thread_exchange_stream_capture_mode)(int *mode);
    int (*module_load_data)(Module *module, const void *image);
    int (*module_unload)(Module module);
    int (*module_get_function)(Function *function, Module module, const char *name);
    int (*func_set_attribute)(Function function, int attribute, int value);
    int (*launch_kernel)(Function function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z, unsigned threads_x,
                         unsigned threads_y, unsigned threads_z, unsigned shared_bytes, Stream stream, void **arguments,
                         void **extra);
};

// The driver, initialised; NULL where none serves this process, *reason then says why and lives as long as the library.
// The first call loads it and looks at the devices; what it found stays. Thread-safe, and no lock of Heed's is held: a
// child of fork never waits for a thread that it lacks. (The driver itself does not survive a fork: its calls then
// fail with its own error.)
const Driver *find_driver(const char **reason);

// The highest compute capability (10 * major + minor) of the devices; 0 without a driver.
int best_capability();

// HEED_OK, or the failure as this thread's error sentence: OUT_OF_MEMORY, NO_DEVICE or INTERNAL.
heed_status check(const Driver &driver, int code, const char *call);

}  // namespace heed::cuda
