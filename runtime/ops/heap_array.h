// An array from the heap whose failure is a value: no exception crosses the C API.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <type_traits>

#include "status.h"
#include "view.h"

namespace heed {

template <typename T>
class HeapArray {
    static_assert(std::is_trivial_v<T>, "the memory is not initialised");

public:
    HeapArray() = default;
    ~HeapArray() { std::free(data_); }
    HeapArray(const HeapArray &) = delete;
    HeapArray &operator=(const HeapArray &) = delete;

    // Once. `name` is the API function that needs it.
    heed_status allocate(const char *name, int64_t count) {
        int64_t bytes = 0;
        if (checked_mul(count, static_cast<int64_t>(sizeof(T)), &bytes)) {
            data_ = static_cast<T *>(std::malloc(static_cast<size_t>(bytes > 0 ? bytes : 1)));
        }
        if (data_ != nullptr) return HEED_OK;
        return fail(HEED_OUT_OF_MEMORY, "%s: no memory for %lld elements of %zu bytes", name,
                    static_cast<long long>(count), sizeof(T));
    }

    T &operator[](int64_t i) { return data_[i]; }
    const T &operator[](int64_t i) const { return data_[i]; }
    T *data() { return data_; }

private:
    T *data_ = nullptr;
};

}  // namespace heed
