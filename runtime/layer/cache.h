// A key/value cache that owns its memory.
#pragma once

#include <memory>
#include <vector>

#include "heed/heed.h"
#include "runtime/backend.h"

// Elements are head by head, [batch or page][head][token][element], so that attention reads each head in one stream.
struct heed_cache {
    heed_kv_storage storage;
    heed_dtype dtype, layer_dtype;
    int32_t batch, capacity, num_kv_heads, head_dim, head_dim_v;
    int32_t num_pages, page_size, max_pages_per_seq;  // paged, else 0
    heed::LayerDevice device;                         // of the layer that made it
    void *stream = nullptr;  // CUDA: of the last call that wrote; copies of pages and sequences run after it
    heed::OwnedMemory k, v;
    heed::OwnedMemory k_scale, v_scale;  // f32, of int8
    // On the host, whatever the device.
    std::vector<int32_t> kv_lens;     // [batch]
    std::vector<int32_t> page_table;  // [batch, max_pages_per_seq]; contiguous: [batch], each sequence as a page
    std::vector<int32_t> page_users;  // sequences that a page belongs to
    std::vector<int32_t> free_pages;

    int64_t blocks() const { return storage == HEED_KV_PAGED ? num_pages : batch; }
    int32_t block_len() const { return storage == HEED_KV_PAGED ? page_size : capacity; }
    heed_kv_view view() const;
    int32_t &page(int32_t sequence, int32_t index) {
        return page_table[static_cast<size_t>(sequence) * static_cast<size_t>(max_pages_per_seq) +
                          static_cast<size_t>(index)];
    }

    heed_status copy(const heed_kv_range &range) const;

    // Makes the slots for new_lens[b] tokens after kv_lens[b] writable: hands out pages, copies a shared one.
    // OUT_OF_MEMORY when too few pages are free, before anything changes.
    heed_status reserve(const int32_t *new_lens);
    void truncate(int32_t sequence, int32_t kv_len);
};

namespace heed {

// Whether the layer could have made the cache; a message names both shapes.
heed_status check_cache_of(const heed_layer &layer, const heed_cache &cache);

}  // namespace heed
