// Memory for caches, in huge pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdlib>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace heed {

class LargeBuffer {
public:
    LargeBuffer() = default;
    ~LargeBuffer() { std::free(data_); }
    LargeBuffer(const LargeBuffer &) = delete;
    LargeBuffer &operator=(const LargeBuffer &) = delete;

    // Once; false when there is no memory. Not initialised.
    bool allocate(size_t bytes) {
        const size_t alignment = bytes < huge_page ? 64 : huge_page;
        const size_t whole = (bytes / alignment + 1) * alignment;
        data_ = std::aligned_alloc(alignment, whole);
#if defined(__linux__)
        if (data_ != nullptr && bytes >= huge_page) madvise(data_, whole, MADV_HUGEPAGE);
#endif
        return data_ != nullptr;
    }
    void *data() const { return data_; }

private:
    static constexpr size_t huge_page = 2 << 20;
    void *data_ = nullptr;
};

}  // namespace heed
