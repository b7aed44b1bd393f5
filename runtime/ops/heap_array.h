// An array from the caller's workspace or the heap, whose failure is a value: no exception crosses the C API.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <type_traits>

#include "heed/heed.h"
#include "runtime/ranges.h"
#include "runtime/scratch.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {

// What is left of the workspace of an execution. Arrays that find no room there come from the heap.
class OpMemory {
public:
    explicit OpMemory(const heed_execution &execution)
        : next_(execution.workspace), left_(next_ == nullptr ? 0 : execution.workspace_bytes) {}

    // 64-byte aligned; NULL where less is left.
    void *take(int64_t bytes) {
        const auto size = static_cast<size_t>(bytes);
        void *const taken = std::align(64, size, next_, left_);
        if (taken == nullptr) return nullptr;
        next_ = static_cast<char *>(taken) + size;
        left_ -= size;
        return taken;
    }

private:
    void *next_;
    size_t left_;
};

// The workspace as memory that is written.
inline heed_status add_workspace(const heed_execution &execution, MemoryRanges *ranges) {
    if (execution.workspace == nullptr) return HEED_OK;
    return ranges->add("execution.workspace", execution.workspace, static_cast<int64_t>(execution.workspace_bytes), 1,
                       Access::write);
}

// Aligned as a ScratchSlice asks; vectors of kernels then do not straddle cache lines.
inline void *scratch_aligned(int64_t bytes) {
    if (bytes > std::numeric_limits<int64_t>::max() - scratch_alignment) return nullptr;
    return std::aligned_alloc(scratch_alignment,
                              static_cast<size_t>(round_up(std::max<int64_t>(bytes, 1), scratch_alignment)));
}

template <typename T>
class HeapArray {
    static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>,
                  "elements are assigned before they are read, and not destroyed");

public:
    HeapArray() = default;
    ~HeapArray() {
        if (owned_) std::free(data_);
    }
    HeapArray(const HeapArray &) = delete;
    HeapArray &operator=(const HeapArray &) = delete;

    // Once. `name` is the API function that needs it; from `memory` as far as it goes.
    heed_status allocate(const char *name, int64_t count, OpMemory *memory = nullptr) {
        int64_t bytes = 0;
        if (count >= 0 && checked_mul(count, static_cast<int64_t>(sizeof(T)), &bytes)) {
            if (memory != nullptr) data_ = static_cast<T *>(memory->take(bytes));
            owned_ = data_ == nullptr;
            if (owned_) data_ = static_cast<T *>(scratch_aligned(bytes));
        }
        if (data_ != nullptr) return HEED_OK;
        return fail(HEED_OUT_OF_MEMORY, "%s: no memory for %lld elements of %zu bytes", name,
                    static_cast<long long>(count), sizeof(T));
    }

    T &operator[](int64_t i) { return data_[i]; }
    const T &operator[](int64_t i) const { return data_[i]; }
    T *data() { return data_; }
    const T *data() const { return data_; }

private:
    T *data_ = nullptr;
    bool owned_ = false;
};

}  // namespace heed
