// What generated host code calls to launch its kernel, in place of Halide's own CUDA runtime: on the caller's stream
// and context, without a limit of registers, without waiting. Strong definitions: they win over weak ones of a
// program's Halide runtime.
#include <HalideRuntime.h>
#include <HalideRuntimeCuda.h>

#include <new>

#include "runtime/cuda/launches.h"
#include "runtime/cuda/modules.h"
#include "runtime/status.h"

namespace heed::cuda {
namespace {

// write_metadata has the most: its scalars and what its buffer makes of itself.
constexpr int max_parameters = 256;

// No function of it is ever called: buffers come with their addresses.
constexpr halide_device_interface_t device_interface = {};

Launches *launches_of(void *user_context) {
    auto *context = static_cast<KernelContext *>(user_context);
    return context == nullptr ? nullptr : context->launches;
}

// Keeps the first status: later failures are its consequences.
int keep(Launches &launches, heed_status status) {
    if (!launches.status) launches.status = status;
    return status ? halide_error_code_device_run_failed : halide_error_code_success;
}

// Each parameter's address, as cuLaunchKernel takes them; a buffer is its device address. False when there are more.
bool gather(const size_t *sizes, void **arguments, const int8_t *is_buffer, void *(&parameters)[max_parameters]) {
    int count = 0;
    for (; sizes[count] != 0; count++) {
        if (count == max_parameters) return false;
        parameters[count] =
            is_buffer[count] ? &static_cast<halide_buffer_t *>(arguments[count])->device : arguments[count];
    }
    return true;
}

}  // namespace
}  // namespace heed::cuda

using namespace heed::cuda;

// Kernels may be in a library of their own.
#pragma GCC visibility push(default)
extern "C" {

// *state is a static of the kernel's object, NULL at first. An image stays there for the life of the process.
int halide_cuda_initialize_kernels(void *, void **state, const char *source, int) {
    if (__atomic_load_n(state, __ATOMIC_ACQUIRE) != nullptr) return halide_error_code_success;
    auto *fresh = new (std::nothrow) Image(source);
    if (fresh == nullptr) return halide_error_code_out_of_memory;
    void *expected = nullptr;
    if (!__atomic_compare_exchange_n(state, &expected, fresh, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) delete fresh;
    return halide_error_code_success;
}

// Runs at the end of each call.
void halide_cuda_finalize_kernels(void *, void *) {}

int halide_cuda_run(void *user_context, void *state, const char *entry_name, int blocks_x, int blocks_y, int blocks_z,
                    int threads_x, int threads_y, int threads_z, int shared_bytes, size_t *sizes, void **arguments,
                    int8_t *is_buffer) {
    Launches *const launches = launches_of(user_context);
    if (launches == nullptr || state == nullptr) return halide_error_code_device_run_failed;
    void *parameters[max_parameters];
    if (!gather(sizes, arguments, is_buffer, parameters)) {
        return keep(*launches, heed::fail(HEED_INTERNAL, "%s has more than %d parameters", entry_name, max_parameters));
    }
    const Driver &driver = launches->driver;
    Function function = nullptr;
    const heed_status status =
        static_cast<Image *>(state)->find(driver, launches->context_id, entry_name, shared_bytes, &function);
    if (status) return keep(*launches, status);
    const auto number = [](int x) { return static_cast<unsigned>(x); };
    const int code = driver.launch_kernel(function, number(blocks_x), number(blocks_y), number(blocks_z),
                                          number(threads_x), number(threads_y), number(threads_z), number(shared_bytes),
                                          launches->stream, parameters, nullptr);
    launches->count++;
    return keep(*launches, check(driver, code, "cuLaunchKernel"));
}

const halide_device_interface_t *halide_cuda_device_interface() { return &device_interface; }

// Nothing is ever to be copied: each buffer is on the device already, or not used (address 0).
int halide_copy_to_device(void *user_context, halide_buffer_t *buffer, const halide_device_interface_t *interface) {
    if (interface == &device_interface && buffer->device_interface == interface) return halide_error_code_success;
    halide_error(user_context, "a buffer was to be copied to a device by a Halide runtime that only launches kernels");
    return halide_error_code_copy_to_device_failed;
}

}  // extern "C"
#pragma GCC visibility pop
