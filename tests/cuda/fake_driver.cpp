#include "tests/cuda/fake_driver.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>

#define FAKE_API extern "C" __attribute__((visibility("default")))

struct CUmod_st {
    std::string image;
};
struct CUfunc_st {
    CUmod_st *module;
    std::string entry;
};

namespace {

constexpr int invalid_value = 1, not_initialized = 3, invalid_context = 201;

fake::Driver state;
// They live as long as the process: a test may count on their addresses.
std::deque<CUmod_st> modules;
std::deque<CUfunc_st> functions;
thread_local std::vector<CUctx_st *> contexts;  // of this thread, the current one last
pid_t owner = 0;

CUctx_st *current_context() { return contexts.empty() ? nullptr : contexts.back(); }

int told_code(const char *name) {
    const auto told = state.fail.find(name);
    return told == state.fail.end() ? 0 : told->second;
}

// Notes the call; the code that it must fail with, or 0. After a fork every call fails, as the real driver's do.
int note(const char *name) {
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.calls.push_back(name);
    return owner != getpid() ? not_initialized : told_code(name);
}

}  // namespace

FAKE_API fake::Driver *fake_cuda_driver() { return &state; }

FAKE_API int cuInit(unsigned) {
    owner = getpid();
    return note("cuInit");
}
FAKE_API int cuGetErrorName(int code, const char **name) {
    *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : code == 3 ? "CUDA_ERROR_NOT_INITIALIZED" : "CUDA_ERROR_OF_TEST";
    return told_code("cuGetErrorName");
}
FAKE_API int cuGetErrorString(int, const char **text) {
    *text = "the test asked for it";
    return told_code("cuGetErrorString");
}
FAKE_API int cuDeviceGetCount(int *count) {
    *count = state.num_devices;
    return note("cuDeviceGetCount");
}
FAKE_API int cuDeviceGetAttribute(int *value, int attribute, int) {
    *value = attribute == 75 ? state.capability / 10 : state.capability % 10;
    return note("cuDeviceGetAttribute");
}
FAKE_API int cuCtxSetCurrent(CUctx_st *context) {
    if (!contexts.empty()) contexts.pop_back();
    if (context != nullptr) contexts.push_back(context);
    return 0;
}
FAKE_API int cuCtxGetCurrent(CUctx_st **context) {
    *context = current_context();
    return note("cuCtxGetCurrent");
}
FAKE_API int cuCtxGetDevice(int *device) {
    *device = 0;
    const int code = note("cuCtxGetDevice");
    return contexts.empty() ? invalid_context : code;
}
FAKE_API int cuCtxGetId(CUctx_st *context, unsigned long long *id) {
    *id = context->id;
    return note("cuCtxGetId");
}
FAKE_API int cuCtxPushCurrent_v2(CUctx_st *context) {
    const int code = note("cuCtxPushCurrent");
    if (code == 0) contexts.push_back(context);
    return code;
}
FAKE_API int cuCtxPopCurrent_v2(CUctx_st **context) {
    *context = current_context();
    if (!contexts.empty()) contexts.pop_back();
    return note("cuCtxPopCurrent");
}
FAKE_API int cuStreamGetCtx(CUstream_st *stream, CUctx_st **context) {
    *context = stream->context;
    return note("cuStreamGetCtx");
}
FAKE_API int cuStreamSynchronize(CUstream_st *) { return note("cuStreamSynchronize"); }
FAKE_API int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    const int code = note("cuMemAlloc");
    if (code != 0) return code;
    if (contexts.empty()) return invalid_context;
    *address = reinterpret_cast<uintptr_t>(std::malloc(bytes));
    state.allocated++;
    return 0;
}
FAKE_API int cuMemFree_v2(unsigned long long address) {
    std::free(reinterpret_cast<void *>(address));
    state.freed++;
    return note("cuMemFree");
}
FAKE_API int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
    const int code = note("cuMemcpyHtoD");
    if (code == 0) std::memcpy(reinterpret_cast<void *>(to), from, bytes);
    return code;
}
FAKE_API int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, CUstream_st *) {
    const int code = note("cuMemsetD8Async");
    if (code == 0) std::memset(reinterpret_cast<void *>(to), value, bytes);
    return code;
}
FAKE_API int cuThreadExchangeStreamCaptureMode(int *mode) {
    const int code = note("cuThreadExchangeStreamCaptureMode");
    std::swap(*mode, state.capture_mode);
    return code;
}
FAKE_API int cuModuleLoadData(CUmod_st **module, const void *image) {
    const int code = note("cuModuleLoadData");
    if (code != 0) return code;
    if (contexts.empty()) return invalid_context;
    const std::lock_guard<std::mutex> lock(state.mutex);
    state.capture_mode_of_load.push_back(state.capture_mode);
    state.loaded++;
    *module = &modules.emplace_back(CUmod_st{static_cast<const char *>(image)});
    return 0;
}
FAKE_API int cuModuleUnload(CUmod_st *) {
    state.unloaded++;
    return note("cuModuleUnload");
}
FAKE_API int cuModuleGetFunction(CUfunc_st **function, CUmod_st *module, const char *name) {
    const int code = note("cuModuleGetFunction");
    const std::lock_guard<std::mutex> lock(state.mutex);
    *function = &functions.emplace_back(CUfunc_st{module, name});
    return code;
}
FAKE_API int cuFuncSetAttribute(CUfunc_st *function, int attribute, int value) {
    const int code = note("cuFuncSetAttribute");
    const std::lock_guard<std::mutex> lock(state.mutex);
    if (attribute == 8) state.max_shared_bytes[function->module->image] = value;
    return code;
}
FAKE_API int cuLaunchKernel(CUfunc_st *function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                            unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                            CUstream_st *stream, void **parameters, void **extra) {
    const int code = note("cuLaunchKernel");
    if (code != 0) return code;
    if (extra != nullptr || blocks_x == 0 || blocks_y == 0 || blocks_z == 0) return invalid_value;
    if (contexts.empty()) return invalid_context;
    if (state.on_launch) {
        state.on_launch({function->module->image,
                         function->entry,
                         {blocks_x, blocks_y, blocks_z},
                         {threads_x, threads_y, threads_z},
                         shared_bytes,
                         stream,
                         current_context(),
                         parameters});
    }
    return 0;
}
