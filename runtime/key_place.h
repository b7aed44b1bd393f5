// Where a key is in pages.
#pragma once

#include <algorithm>

#include "heed/heed.h"
#include "runtime/read_once.h"

namespace heed {

// Indices of k and v along their first two axes.
struct KeyPlace {
    int64_t page, slot;
};

// The key must be one of its sequence. Whoever changes the table meanwhile gets another key, of an existing page.
inline KeyPlace place_in_pages(const heed_problem &p, const int32_t *page_table, int32_t sequence, int64_t key) {
    const int32_t page = read_once(page_table[int64_t{sequence} * p.max_pages_per_seq + key / p.page_size]);
    return {std::clamp(page, 0, std::max(p.num_pages, 1) - 1), key % p.page_size};
}

}  // namespace heed
