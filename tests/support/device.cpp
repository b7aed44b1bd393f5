#include "tests/support/device.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "heed/fields.h"

namespace heed_test {
namespace {

template <class Function>
bool look_up(void *library, const char *name, Function *function) {
    void *const address = library == nullptr ? nullptr : dlsym(library, name);
    if (address != nullptr) std::memcpy(function, &address, sizeof(address));
    return address != nullptr;
}

}  // namespace

heed_device test_device() {
    const char *const value = std::getenv("HEED_TEST_DEVICE");
    return value != nullptr && std::strcmp(value, "cuda") == 0 ? HEED_CUDA : HEED_CPU;
}

bool slow_device() {
    const char *const value = std::getenv("HEED_TEST_SLOW");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

int32_t sized(int32_t full, int32_t slow) { return slow_device() ? slow : full; }

int64_t sectors_read(const std::function<void()> &work) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW);
    int (*configure)(const char *);
    uint64_t (*sectors)(int);
    if (!look_up(library, "heed_device_configure", &configure) || !look_up(library, "heed_device_sectors", &sectors)) {
        return -1;
    }
    configure("traffic=on");
    const uint64_t before = sectors(0);
    work();
    CudaDevice::get().synchronize();
    configure("traffic=off");
    return static_cast<int64_t>(sectors(0) - before);
}

}  // namespace heed_test
