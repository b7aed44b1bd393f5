// A CUDA driver without a device, as libcuda.so.1: it keeps a log of its calls, fails as told, and hands launches to
// the test. Device memory is host memory. For tests of the runtime alone; tests/cuda_device runs real kernels.
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

struct CUctx_st {
    unsigned long long id;
};
struct CUstream_st {
    CUctx_st *context;
};

namespace fake {

struct Launch {
    std::string image, entry;
    unsigned blocks[3], threads[3], shared_bytes;
    CUstream_st *stream;
    CUctx_st *context;  // current at the launch
    void **parameters;  // valid during the callback only
};

struct Driver {
    int capability = 80;  // of all devices
    int num_devices = 1;
    std::map<std::string, int> fail;  // the code that this function returns from now on
    std::function<void(const Launch &)> on_launch;

    std::mutex mutex;  // of the rest
    std::vector<std::string> calls;
    std::map<std::string, int> max_shared_bytes;  // by image
    std::atomic<int> loaded{0}, unloaded{0};
    std::atomic<int> allocated{0}, freed{0};
    int capture_mode = 0;                   // of all threads
    std::vector<int> capture_mode_of_load;  // when each module was loaded
};

// The fake that this process has loaded; loads it when it has not.
inline Driver &driver() {
    static auto *const get =
        reinterpret_cast<Driver *(*)()>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "fake_cuda_driver"));
    return *get();
}

// Whether this process has loaded any libcuda.so.1.
inline bool is_loaded() {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library != nullptr) dlclose(library);
    return library != nullptr;
}

// cuCtxSetCurrent of this thread.
inline void set_current(CUctx_st *context) {
    using SetCurrent = int (*)(CUctx_st *);
    reinterpret_cast<SetCurrent>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxSetCurrent"))(context);
}
inline CUctx_st *current() {
    using GetCurrent = int (*)(CUctx_st **);
    CUctx_st *context = nullptr;
    reinterpret_cast<GetCurrent>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuCtxGetCurrent"))(&context);
    return context;
}

}  // namespace fake
