// Memory that a layer or a cache owns, where the layer computes.
#pragma once

#include "backend.h"
#include "cuda/contexts.h"
#include "cuda/device_memory.h"
#include "layer/large_buffer.h"

namespace heed {

// Where a layer, its caches and its calls compute.
struct LayerDevice {
    heed_device kind = HEED_CPU;
    const cuda::Driver *driver = nullptr;  // CUDA, as what follows
    cuda::Context context = nullptr;
    uint64_t context_id = 0;
    int capability = 0;  // of its chip, 10 * major + minor

    const Backend &backend() const { return backend_of(kind); }
};

// Allocated and filled by the backend: one of the two.
struct OwnedMemory {
    LargeBuffer host;
    cuda::DeviceMemory device;

    void *data() const { return host.data() != nullptr ? host.data() : device.data(); }
};

}  // namespace heed
