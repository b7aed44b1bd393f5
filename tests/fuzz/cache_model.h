// A small key/value cache in allocations of its exact size, with a copy that plain loops keep: what the operations on
// caches must leave.
#pragma once

#include <vector>

#include "heed/heed.h"
#include "tests/fuzz/fuzz.h"

namespace heed_test {

// k or v, or their scales: rows of `row_bytes`, by block (page or sequence), slot and head.
struct Plane {
    std::vector<uint8_t> bytes, model;
    heed_layout layout = {};
    int64_t element_bytes = 1, row_bytes = 0;

    uint8_t *row(std::vector<uint8_t> *memory, int64_t block, int64_t slot, int64_t head) const {
        return memory->data() +
               (block * layout.stride[0] + slot * layout.stride[1] + head * layout.stride[2]) * element_bytes;
    }
};

class CacheModel {
public:
    explicit CacheModel(ByteReader *bytes);

    heed_kv_view view();

    bool paged() const { return shape_.storage == HEED_KV_PAGED; }
    int64_t num_blocks() const { return paged() ? shape_.num_pages : shape_.batch; }
    int64_t block_len() const { return paged() ? shape_.page_size : shape_.capacity; }
    int64_t capacity() const { return paged() ? shape_.max_pages_per_seq * block_len() : block_len(); }

    // Bytes of memory that are not what the model says.
    void expect_as_model(const char *operation);
    // Takes over what an operation wrote to one slot of a plane.
    void adopt(Plane *plane, int64_t block, int64_t slot);

    std::vector<Plane> planes;  // k, v; int8: k_scale, v_scale
    std::vector<int32_t> page_table, kv_lens;

private:
    void make_plane(ByteReader *bytes, int64_t row, heed_dtype dtype, bool packed);

    heed_kv_view shape_ = {};  // without pointers
};

}  // namespace heed_test
