// Memory between pages that fault on any access, for inputs, outputs and workspaces.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed_test {

// Which neighbouring page the first or last byte touches.
enum class Flush { front, rear };

// `bytes` of memory, flush with a PROT_NONE page on one side. The slack up to the page on the other side, and at first
// the memory itself, holds 0xff bytes: NaN as f32, f16 and bf16, true as a mask, -1 as an integer.
// 0 bytes: data() points at the guard page.
class GuardedBuffer {
public:
    GuardedBuffer() = default;
    GuardedBuffer(size_t bytes, Flush flush);
    ~GuardedBuffer();
    GuardedBuffer(GuardedBuffer &&other) noexcept;
    GuardedBuffer &operator=(GuardedBuffer &&other) noexcept;
    GuardedBuffer(const GuardedBuffer &) = delete;
    GuardedBuffer &operator=(const GuardedBuffer &) = delete;

    void *data() const { return data_; }
    size_t bytes() const { return bytes_; }

    // Whether the slack still holds what it held at first.
    bool slack_intact() const;

private:
    unsigned char *mapping_ = nullptr, *data_ = nullptr;
    size_t mapped_ = 0, bytes_ = 0;
};

// Readable and writable memory, zeros, of which only touched pages take room: for tensors beyond 2^31 elements.
class ReservedBuffer {
public:
    explicit ReservedBuffer(int64_t bytes);
    ~ReservedBuffer();
    ReservedBuffer(const ReservedBuffer &) = delete;
    ReservedBuffer &operator=(const ReservedBuffer &) = delete;
    void *data() const { return data_; }

private:
    size_t bytes_;
    void *data_;
};

}  // namespace heed_test
