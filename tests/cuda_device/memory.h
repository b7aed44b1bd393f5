// Global memory of an emulated device.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

namespace heed::device {

struct Allocation {
    uint64_t address = 0, bytes = 0;
    uint64_t owner = 0;  // id of the context
    std::unique_ptr<uint8_t[]> host;

    // Whether all of [at, at + n) is inside.
    bool holds(uint64_t at, uint64_t n) const { return at >= address && n <= bytes && at - address <= bytes - n; }
    uint8_t *pointer(uint64_t at) const { return host.get() + (at - address); }
};

// Addresses are never given twice, are multiples of 256 and no more, and there is at least 1 GiB of nothing after every
// allocation.
class DeviceMemory {
public:
    // New memory holds bytes of 0xff: NaN in every floating format. Throws std::bad_alloc past `capacity` altogether.
    uint64_t allocate(uint64_t bytes, uint64_t owner);
    // False where `address` is not the start of an allocation.
    bool free(uint64_t address);
    void free_all(uint64_t owner);
    static constexpr uint64_t capacity = 8ull << 30;
    uint64_t used() const { return bytes_; }
    // The one that holds all of [address, address + bytes); null where none does.
    const Allocation *find(uint64_t address, uint64_t bytes) const;
    // The one before or after which `address` is; null where none is near.
    const Allocation *nearest(uint64_t address) const;

private:
    std::map<uint64_t, Allocation> allocations_;
    uint64_t next_ = (1ull << 40) + 256;
    uint64_t bytes_ = 0;  // of all
};

}  // namespace heed::device
