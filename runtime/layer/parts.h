// Parts of one block of memory, one after the other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "runtime/scratch.h"
#include "runtime/view.h"

namespace heed {

// Each part is 128-byte aligned where the base is; the total saturates. A NULL base only counts.
class Parts {
public:
    explicit Parts(void *base) : base_(static_cast<char *>(base)) {}

    void *take(int64_t count, int64_t size) {
        int64_t bytes = 0;
        char *const part = base_ == nullptr ? nullptr : base_ + total_;
        if (!checked_mul(count, size, &bytes) || bytes < 0 || bytes > largest || total_ > largest - bytes) {
            total_ = largest;
        } else {
            total_ += round_up(bytes, scratch_alignment);
        }
        return part;
    }
    template <typename T>
    void take(int64_t count, T **part) {
        *part = static_cast<T *>(take(count, sizeof(T)));
    }
    // The product of all factors, none negative.
    template <typename T>
    void take(std::initializer_list<int64_t> factors, T **part) {
        *part = static_cast<T *>(take(product(factors), sizeof(T)));
    }
    int64_t total() const { return total_; }

    // At most `largest`.
    static int64_t product(std::initializer_list<int64_t> factors) {
        int64_t result = 1;
        for (const int64_t factor : factors) {
            if (factor == 0) return 0;
            if (!checked_mul(result, factor, &result)) result = largest;
        }
        return std::min(result, largest);
    }

    static constexpr int64_t largest = int64_t{1} << 62;  // where the total stays

private:
    char *const base_;
    int64_t total_ = 0;
};

}  // namespace heed
