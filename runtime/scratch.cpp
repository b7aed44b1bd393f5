#include "runtime/scratch.h"

#include <algorithm>
#include <new>

#include "runtime/view.h"

namespace heed {
namespace {

const int64_t header_bytes = round_up(static_cast<int64_t>(sizeof(ScratchSlice)), scratch_alignment);

}  // namespace

int64_t ScratchSlice::bytes_for(int64_t payload) {
    return header_bytes + round_up(payload, scratch_alignment) + max_blocks * scratch_alignment;
}

ScratchSlice *ScratchSlice::create(void *memory, int64_t bytes) {
    auto *slice = new (memory) ScratchSlice;
    slice->size_ = bytes;
    slice->top_ = header_bytes;
    slice->num_blocks_ = 0;
    return slice;
}

void *ScratchSlice::allocate(size_t bytes) {
    const int64_t room = size_ - top_;
    if (num_blocks_ == max_blocks || bytes > static_cast<size_t>(room)) return nullptr;
    // An empty block takes room as well: its address must be inside the slice.
    const int64_t padded = round_up(std::max<int64_t>(static_cast<int64_t>(bytes), 1), scratch_alignment);
    if (padded > room) return nullptr;
    begin_[num_blocks_++] = top_;
    void *block = reinterpret_cast<char *>(this) + top_;
    top_ += padded;
    return block;
}

void ScratchSlice::release(const void *block) {
    const int64_t offset = static_cast<const char *>(block) - reinterpret_cast<const char *>(this);
    for (int32_t i = num_blocks_ - 1; i >= 0; i--) {
        if (begin_[i] == offset) {
            begin_[i] = ~offset;
            break;
        }
    }
    while (num_blocks_ > 0 && begin_[num_blocks_ - 1] < 0) top_ = ~begin_[--num_blocks_];
}

}  // namespace heed
