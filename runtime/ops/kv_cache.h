// A validated heed_kv_view.
#pragma once

#include "runtime/ops/rows.h"
#include "runtime/ranges.h"

namespace heed {

// Memory of a cache as blocks of tokens: sequences (contiguous) or pages (paged).
struct KvCache {
    int64_t num_blocks;
    int32_t block_len;  // tokens of a block
    bool quantised;
    View k, v;              // [block, token, head, element]
    View k_scale, v_scale;  // [block, token, head, 1]
};

// Enums, dims and layouts.
heed_status check_cache(const heed_kv_view &view, KvCache *cache);

// k, v and the scales, all written. k and v may interleave: views of one allocation in which every block, token or head
// holds first a part of one and then a part of the other.
heed_status add_cache_memory(const heed_kv_view &view, const KvCache &cache, MemoryRanges *ranges);

}  // namespace heed
