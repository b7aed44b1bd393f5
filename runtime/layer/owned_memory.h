// Memory that a layer or a cache owns, where the layer computes.
#pragma once

#include "cuda/contexts.h"
#include "cuda/device_memory.h"
#include "heed/heed.h"
#include "layer/large_buffer.h"

namespace heed {

// The CUDA context of a layer, its caches and its calls; `driver` NULL on the CPU.
struct LayerDevice {
    const cuda::Driver *driver = nullptr;
    cuda::Context context = nullptr;
    uint64_t context_id = 0;
    int capability = 0;  // of its chip, 10 * major + minor

    bool is_cuda() const { return driver != nullptr; }
    heed_status enter(cuda::ScopedContext *scope) const {
        return is_cuda() ? scope->enter_context(*driver, context) : HEED_OK;
    }
};

class OwnedMemory {
public:
    // Once; not initialised. On CUDA the device's context is current. `name` is the API function that needs it.
    heed_status allocate(const char *name, const LayerDevice &device, int64_t bytes);

    // Once: a copy of `bytes` bytes of host memory.
    heed_status assign(const char *name, const LayerDevice &device, const void *from, int64_t bytes);

    void *data() const { return host_.data() != nullptr ? host_.data() : device_.data(); }

private:
    LargeBuffer host_;
    cuda::DeviceMemory device_;
};

}  // namespace heed
