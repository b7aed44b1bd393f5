#include "tests/cuda_device/shared_memory.h"

#include <algorithm>

namespace heed::device {

SharedMemory::SharedMemory(uint32_t bytes, bool checks) : data_(bytes), checks_(checks) {
    if (!checks) return;
    writer_.resize(bytes);
    reader_epoch_.resize(bytes);
    reader_warps_.resize(bytes);
    last_reader_.resize(bytes);
    copy_.resize(bytes);
}

void SharedMemory::begin_block() {
    std::fill(data_.begin(), data_.end(), uint8_t{0xa5});
    epoch_++;
    if (epoch_ > last_epoch) {
        epoch_ = 1;
        for (auto *bytes : {&writer_, &reader_epoch_, &reader_warps_, &last_reader_, &copy_})
            std::fill(bytes->begin(), bytes->end(), 0);
    }
    first_epoch_ = epoch_;
}

template <uint32_t bytes>
bool SharedMemory::read_bytes(uint32_t at, Accessor by) {
    const uint32_t first = first_epoch_ << 5, epoch = epoch_, mine = epoch << 5 | by.warp;
    const uint32_t my_copy = epoch << 10 | by.thread;
    const uint32_t *writer = writer_.data() + at, *copy = copy_.data() + at;
    uint32_t *last_reader = last_reader_.data() + at;
    uint32_t other = 0;
    for (uint32_t i = 0; i < bytes; i++) other |= last_reader[i] ^ mine;
    if (other == 0) return true;
    uint32_t bad = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        const uint32_t raced = (writer[i] >> 5 == epoch) & (writer[i] != mine);
        const uint32_t copied = (copy[i] >> 31) | ((copy[i] >> 10 == epoch) & (copy[i] != my_copy));
        bad |= (writer[i] < first) | raced | copied;
    }
    if (bad != 0) return false;
    uint32_t *reader_epoch = reader_epoch_.data() + at, *reader_warps = reader_warps_.data() + at;
    for (uint32_t i = 0; i < bytes; i++) {
        reader_warps[i] = (reader_epoch[i] == epoch ? reader_warps[i] : 0) | 1u << by.warp;
        reader_epoch[i] = epoch;
        last_reader[i] = copy[i] >> 10 == epoch ? 0 : mine;
    }
    return true;
}

template <uint32_t bytes>
bool SharedMemory::write_bytes(uint32_t at, Accessor by) {
    const uint32_t epoch = epoch_, mine = epoch << 5 | by.warp, others = ~(1u << by.warp);
    const uint32_t my_copy = epoch << 10 | by.thread;
    uint32_t *writer = writer_.data() + at, *copy = copy_.data() + at;
    const uint32_t *reader_epoch = reader_epoch_.data() + at, *reader_warps = reader_warps_.data() + at;
    uint32_t bad = 0;
    for (uint32_t i = 0; i < bytes; i++) {
        const uint32_t raced = (writer[i] >> 5 == epoch) & (writer[i] != mine);
        const uint32_t read = (reader_epoch[i] == epoch) & ((reader_warps[i] & others) != 0);
        const uint32_t copied = (copy[i] >> 31) | ((copy[i] >> 10 == epoch) & (copy[i] != my_copy));
        bad |= raced | read | copied;
    }
    if (bad != 0) return false;
    for (uint32_t i = 0; i < bytes; i++) {
        writer[i] = mine;
        copy[i] = 0;
    }
    return true;
}

bool SharedMemory::read(uint32_t at, uint32_t bytes, Accessor by) {
    if (!checks_) return true;
    switch (bytes) {
    case 1:
        return read_bytes<1>(at, by);
    case 2:
        return read_bytes<2>(at, by);
    case 4:
        return read_bytes<4>(at, by);
    case 8:
        return read_bytes<8>(at, by);
    default:
        return read_bytes<16>(at, by);
    }
}

bool SharedMemory::write(uint32_t at, uint32_t bytes, Accessor by) {
    if (!checks_) return true;
    switch (bytes) {
    case 1:
        return write_bytes<1>(at, by);
    case 2:
        return write_bytes<2>(at, by);
    case 4:
        return write_bytes<4>(at, by);
    case 8:
        return write_bytes<8>(at, by);
    default:
        return write_bytes<16>(at, by);
    }
}

bool SharedMemory::begin_copy(uint32_t at, uint32_t bytes, Accessor by) {
    if (!write(at, bytes, by)) return false;
    if (!checks_) return true;
    std::fill_n(copy_.begin() + at, bytes, in_flight | by.thread);
    std::fill_n(last_reader_.begin() + at, bytes, 0);
    return true;
}

void SharedMemory::end_copy(uint32_t at, uint32_t bytes, Accessor by) {
    if (!checks_) return;
    std::fill_n(copy_.begin() + at, bytes, epoch_ << 10 | by.thread);
    std::fill_n(writer_.begin() + at, bytes, epoch_ << 5 | by.warp);
}

void SharedMemory::drop_copy(uint32_t at, uint32_t bytes) {
    if (checks_) std::fill_n(copy_.begin() + at, bytes, 0);
}

std::string SharedMemory::explain(uint32_t at, uint32_t bytes, Accessor by, bool writes) const {
    for (uint32_t i = at; i < at + bytes; i++) {
        const std::string byte = "shared memory at byte " + std::to_string(i);
        const uint32_t writer_epoch = writer_[i] >> 5, writer = writer_[i] & 31;
        if ((copy_[i] & in_flight) != 0)
            return byte + " is the destination of a cp.async of thread " + std::to_string(copy_[i] & 1023) +
                   " that has not been waited for";
        if (copy_[i] >> 10 == epoch_ && copy_[i] != (epoch_ << 10 | by.thread))
            return byte + " was copied by thread " + std::to_string(copy_[i] & 1023) +
                   ", and there was no barrier since its wait";
        if (!writes && writer_epoch < first_epoch_) return byte + " is read and was never written";
        if (writer_epoch == epoch_ && writer != by.warp)
            return byte + " was written by warp " + std::to_string(writer) + ", and there was no barrier since: a race";
        if (writes && reader_epoch_[i] == epoch_ && (reader_warps_[i] & ~(1u << by.warp)) != 0)
            return byte + " was read by warp " + std::to_string(__builtin_ctz(reader_warps_[i] & ~(1u << by.warp))) +
                   ", and there was no barrier since: a race";
    }
    return "shared memory is fine";
}

}  // namespace heed::device
