// Memory of a CUDA context, owned.
#pragma once

#include "cuda/driver.h"

namespace heed::cuda {

class DeviceMemory {
public:
    DeviceMemory() = default;
    ~DeviceMemory();
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;

    // Once, in the context that is current on this thread, which must outlive the memory. Not initialised.
    heed_status allocate(const Driver &driver, size_t bytes);

    // Copies from host memory to its start, in the context that is current, and waits.
    heed_status fill(const void *from, size_t bytes);

    void *data() const { return pointer_of(address_); }

private:
    const Driver *driver_ = nullptr;
    Context context_ = nullptr;
    DeviceAddress address_ = 0;
};

}  // namespace heed::cuda
