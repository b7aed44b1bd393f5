#include "tests/cuda_device/memory.h"

#include <cstring>
#include <new>

namespace heed::device {
namespace {

constexpr uint64_t gap = 1ull << 30;

}  // namespace

uint64_t DeviceMemory::allocate(uint64_t bytes, uint64_t owner) {
    if (bytes > capacity || bytes_ > capacity - bytes) throw std::bad_alloc();
    Allocation allocation;
    allocation.address = next_;
    allocation.bytes = bytes;
    allocation.owner = owner;
    allocation.host.reset(new uint8_t[bytes]);
    std::memset(allocation.host.get(), 0xff, bytes);
    next_ += (bytes / gap + 2) * gap;
    bytes_ += bytes;
    const uint64_t address = allocation.address;
    allocations_.emplace(address, std::move(allocation));
    return address;
}

bool DeviceMemory::free(uint64_t address) {
    const auto found = allocations_.find(address);
    if (found == allocations_.end()) return false;
    bytes_ -= found->second.bytes;
    allocations_.erase(found);
    return true;
}

void DeviceMemory::free_all(uint64_t owner) {
    for (auto at = allocations_.begin(); at != allocations_.end();) {
        const auto next = std::next(at);
        if (at->second.owner == owner) free(at->first);
        at = next;
    }
}

const Allocation *DeviceMemory::find(uint64_t address, uint64_t bytes) const {
    const auto after = allocations_.upper_bound(address);
    if (after == allocations_.begin()) return nullptr;
    const Allocation &allocation = std::prev(after)->second;
    return allocation.holds(address, bytes) ? &allocation : nullptr;
}

const Allocation *DeviceMemory::nearest(uint64_t address) const {
    const auto after = allocations_.upper_bound(address);
    if (after != allocations_.begin()) {
        const Allocation &before = std::prev(after)->second;
        if (address - before.address < before.bytes + gap / 2) return &before;
    }
    return after != allocations_.end() && after->first - address < gap / 2 ? &after->second : nullptr;
}

}  // namespace heed::device
