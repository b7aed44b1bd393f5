#include "runtime/cuda/driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>

#include "runtime/status.h"

namespace heed::cuda {
namespace {

// What the first call found; never changes afterwards.
struct Found {
    Driver driver = {};
    int capability = 0;
    char reason[256] = "";  // why the driver does not serve; empty when it does
};

std::atomic<const Found *> found{nullptr};

// The first function that the library lacks, NULL when it has all.
const char *look_up(void *library, Driver *driver) {
#define HEED_LOOK_UP(name, symbol, ...)                                                                                \
    if (void *const address = dlsym(library, symbol)) {                                                                \
        std::memcpy(&driver->name, &address, sizeof(address));                                                         \
    } else {                                                                                                           \
        return symbol;                                                                                                 \
    }
    HEED_DRIVER_FUNCTIONS(HEED_LOOK_UP)
#undef HEED_LOOK_UP
    return nullptr;
}

const char *name_of(const Driver &driver, int code) {
    const char *name = nullptr;
    return driver.get_error_name(code, &name) == success && name != nullptr ? name : "an unknown error";
}

// Device ordinals are the CUdevice handles.
int find_capability(const Driver &driver, int num_devices) {
    int best = 0;
    for (int device = 0; device < num_devices; device++) {
        int major = 0, minor = 0;
        if (driver.device_get_attribute(&major, device_capability_major, device) == success &&
            driver.device_get_attribute(&minor, device_capability_minor, device) == success) {
            best = std::max(best, 10 * major + minor);
        }
    }
    return best;
}

// The library stays loaded: its threads and handlers outlive every call.
void load(Found *result) {
    void *const library = dlopen(driver_library, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::snprintf(result->reason, sizeof(result->reason), "no CUDA driver (libcuda.so.1) was found");
        return;
    }
    Driver &driver = result->driver;
    if (const char *missing = look_up(library, &driver)) {
        std::snprintf(result->reason, sizeof(result->reason),
                      "the CUDA driver has no %s; it must be of CUDA 12.0 or newer", missing);
        return;
    }
    int num_devices = 0;
    int code = driver.init(0);
    if (code == success) code = driver.device_get_count(&num_devices);
    if (code == error_no_device || (code == success && num_devices == 0)) {
        std::snprintf(result->reason, sizeof(result->reason), "the CUDA driver reports no device");
    } else if (code != success) {
        std::snprintf(result->reason, sizeof(result->reason), "the CUDA driver does not start: %s",
                      name_of(driver, code));
    } else {
        result->capability = find_capability(driver, num_devices);
    }
}

// Threads that come at once all load (dlopen and cuInit count or ignore repetitions), and the first one's table stays.
const Found *find() {
    if (const Found *known = found.load(std::memory_order_acquire)) return known;
    auto *fresh = new (std::nothrow) Found;
    if (fresh == nullptr) return nullptr;
    load(fresh);
    const Found *expected = nullptr;
    if (found.compare_exchange_strong(expected, fresh)) return fresh;
    delete fresh;
    return expected;
}

}  // namespace

const Driver *find_driver(const char **reason) {
    const Found *result = find();
    *reason = result == nullptr ? "no memory is left to load the CUDA driver" : result->reason;
    return (*reason)[0] == '\0' ? &result->driver : nullptr;
}

heed_status open_driver(const char *field, const Driver **driver) {
    const char *reason = nullptr;
    *driver = find_driver(&reason);
    return *driver != nullptr ? HEED_OK : fail(HEED_NO_DEVICE, "%s is HEED_CUDA; %s", field, reason);
}

int best_capability() {
    const Found *result = find();
    return result == nullptr ? 0 : result->capability;
}

heed_status check(const Driver &driver, int code, const char *call) {
    if (code == success) return HEED_OK;
    const char *text = nullptr;
    if (driver.get_error_string(code, &text) != success || text == nullptr) text = "no description";
    const heed_status status = code == error_out_of_memory ? HEED_OUT_OF_MEMORY
                               : code == error_no_device   ? HEED_NO_DEVICE
                                                           : HEED_INTERNAL;
    return fail(status, "%s failed with %s (%d): %s", call, name_of(driver, code), code, text);
}

}  // namespace heed::cuda
