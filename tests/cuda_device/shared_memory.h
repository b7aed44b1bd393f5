// Shared memory of one block, and what is known about each of its bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heed::device {

// Who accesses shared memory: a thread of a warp.
struct Accessor {
    uint32_t warp = 0, thread = 0;
};

// The rules, between two barriers of the block:
// - bytes that one warp writes are neither read nor written by another;
// - a byte is written before it is read;
// - from cp.async on a byte is not touched until its thread has waited; until the next barrier only that thread does.
// Functions that return false have done nothing; explain() says why.
class SharedMemory {
public:
    SharedMemory(uint32_t bytes, bool checks);

    void begin_block();
    void barrier() { epoch_++; }

    // Addresses count from 0. Accesses are of 1, 2, 4, 8 or 16 bytes and are inside.
    uint8_t *data(uint32_t at) { return data_.data() + at; }
    uint32_t size() const { return static_cast<uint32_t>(data_.size()); }
    bool read(uint32_t at, uint32_t bytes, Accessor by);
    bool write(uint32_t at, uint32_t bytes, Accessor by);
    bool begin_copy(uint32_t at, uint32_t bytes, Accessor by);
    void end_copy(uint32_t at, uint32_t bytes, Accessor by);
    // At the end of a block, without a wait.
    void drop_copy(uint32_t at, uint32_t bytes);
    std::string explain(uint32_t at, uint32_t bytes, Accessor by, bool writes) const;

private:
    template <uint32_t bytes>
    bool read_bytes(uint32_t at, Accessor by);
    template <uint32_t bytes>
    bool write_bytes(uint32_t at, Accessor by);

    static constexpr uint32_t in_flight = 1u << 31;
    static constexpr uint32_t last_epoch = 1u << 20;

    std::vector<uint8_t> data_;
    // Per byte; epochs count barriers and never repeat while a block runs.
    std::vector<uint32_t> writer_;        // epoch * 32 + warp of the last write
    std::vector<uint32_t> reader_epoch_;  // of reader_warps_
    std::vector<uint32_t> reader_warps_;  // a bit per warp
    std::vector<uint32_t> last_reader_;   // epoch * 32 + warp: whose further reads before a copy are fine; 0: none's
    std::vector<uint32_t> copy_;          // in_flight | thread, or epoch of the wait * 1024 + thread; 0: neither
    uint32_t epoch_ = 0, first_epoch_ = 0;
    bool checks_ = true;
};

}  // namespace heed::device
