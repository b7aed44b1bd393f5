// One thread's share of the workspace: a stack of 128-byte aligned blocks for a kernel's scratch.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed {

constexpr int64_t scratch_alignment = 128;

// Lives at the start of its memory. Not thread-safe: one thread at a time holds a slice.
class ScratchSlice {
public:
    // Blocks alive at once. Generated kernels hold about ten.
    static constexpr int32_t max_blocks = 24;

    // Bytes of a slice that can hold `payload` bytes in any max_blocks blocks, each rounded up to the alignment.
    static int64_t bytes_for(int64_t payload);

    // Makes an empty slice of `bytes` bytes at `memory`, which is 128-byte aligned.
    static ScratchSlice *create(void *memory, int64_t bytes);

    // NULL when the slice or its list of blocks is full.
    void *allocate(size_t bytes);

    // Gives a block back, in any order; space returns when all later blocks are back too.
    void release(const void *block);

    struct Mark {
        int64_t top;
        int32_t num_blocks;
    };

    Mark mark() const { return {top_, num_blocks_}; }

    // Drops the blocks made since `mark`.
    void restore(const Mark &mark) {
        top_ = mark.top;
        num_blocks_ = mark.num_blocks;
    }

private:
    int64_t size_, top_;
    int32_t num_blocks_;
    int64_t begin_[max_blocks];  // offset of each block; negative (~offset) once released
};

}  // namespace heed
