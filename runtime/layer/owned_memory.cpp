#include "layer/owned_memory.h"

#include <cinttypes>
#include <cstring>

#include "status.h"

namespace heed {

heed_status OwnedMemory::allocate(const char *name, const LayerDevice &device, int64_t bytes) {
    const auto size = static_cast<size_t>(bytes);
    if (device.is_cuda()) return device_.allocate(*device.driver, size);
    if (host_.allocate(size)) return HEED_OK;
    return fail(HEED_OUT_OF_MEMORY, "%s: no memory for %" PRId64 " bytes", name, bytes);
}

heed_status OwnedMemory::assign(const char *name, const LayerDevice &device, const void *from, int64_t bytes) {
    if (const heed_status status = allocate(name, device, bytes)) return status;
    const auto size = static_cast<size_t>(bytes);
    if (device.is_cuda()) return device_.fill(from, size);
    std::memcpy(host_.data(), from, size);
    return HEED_OK;
}

}  // namespace heed
