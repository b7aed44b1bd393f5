#include "cuda/device_memory.h"

#include "cuda/contexts.h"

namespace heed::cuda {

DeviceMemory::~DeviceMemory() {
    if (address_ == 0) return;
    ScopedContext context;
    if (context.enter_context(*driver_, context_) == HEED_OK) driver_->mem_free(address_);
}

heed_status DeviceMemory::allocate(const Driver &driver, size_t bytes) {
    driver_ = &driver;
    if (const heed_status status = check(driver, driver.ctx_get_current(&context_), "cuCtxGetCurrent")) return status;
    return check(driver, driver.mem_alloc(&address_, bytes), "cuMemAlloc");
}

// A copy from pageable memory returns before it has arrived; it is on the default stream.
heed_status DeviceMemory::fill(const void *from, size_t bytes) {
    if (const heed_status status = check(*driver_, driver_->memcpy_to_device(address_, from, bytes), "cuMemcpyHtoD")) {
        return status;
    }
    return check(*driver_, driver_->stream_synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace heed::cuda
