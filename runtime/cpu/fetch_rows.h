// Prefetches of rows between which other rows lie, so that the prefetchers of the cache do not follow.
#pragma once

#include <cstdint>

namespace heed {

// Asks for `count` rows of row_bytes each, `stride` bytes apart.
inline void fetch_rows(const void *first, int64_t count, int64_t row_bytes, int64_t stride) {
    constexpr int64_t line_bytes = 64;
    for (int64_t row = 0; row < count; row++) {
        const char *const at = static_cast<const char *>(first) + row * stride;
        for (int64_t byte = 0; byte < row_bytes; byte += line_bytes) __builtin_prefetch(at + byte);
    }
}

}  // namespace heed
