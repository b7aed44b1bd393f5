#include "runtime/ops/kv_cache.h"

#include <algorithm>
#include <cstdlib>

namespace heed {
namespace {

heed_status check_enums(const heed_kv_view &view) {
    if (view.storage != HEED_KV_CONTIGUOUS && view.storage != HEED_KV_PAGED) {
        return fail(HEED_INVALID_ARGUMENT,
                    "cache.storage is %d; it must be HEED_KV_CONTIGUOUS (0) or HEED_KV_PAGED (2)",
                    static_cast<int>(view.storage));
    }
    if (view.dtype == HEED_F32 || view.dtype == HEED_F16 || view.dtype == HEED_BF16 || view.dtype == HEED_I8) {
        return HEED_OK;
    }
    return fail(HEED_INVALID_ARGUMENT,
                "cache.dtype is %s (%d); it must be HEED_F32 (0), HEED_F16 (1), HEED_BF16 (2) or HEED_I8 (3)",
                dtype_name(view.dtype), static_cast<int>(view.dtype));
}

bool interleave(const heed_kv_view &view, const KvCache &cache) {
    const int64_t bytes = dtype_bytes(view.dtype);
    const int64_t distance = static_cast<const char *>(view.v.data) - static_cast<const char *>(view.k.data);
    if (distance % bytes != 0) return false;
    return interleave(cache.k, cache.v, distance / bytes);
}

}  // namespace

heed_status check_cache(const heed_kv_view &view, KvCache *cache) {
    *cache = KvCache{};
    const bool paged = view.storage == HEED_KV_PAGED;
    heed_status status = check_enums(view);
    if (!status) status = check_int("cache.batch", view.batch, 0, INT32_MAX);
    if (!status) status = check_int("cache.num_kv_heads", view.num_kv_heads, 1, INT32_MAX);
    if (!status) status = check_head_dim("cache.head_dim", view.head_dim);
    if (!status) status = check_head_dim("cache.head_dim_v", view.head_dim_v);
    if (!status && !paged) status = check_int("cache.capacity", view.capacity, 0, INT32_MAX);
    if (!status && paged) status = check_int("cache.num_pages", view.num_pages, 0, INT32_MAX);
    if (!status && paged) status = check_int("cache.page_size", view.page_size, 1, INT32_MAX);
    if (!status && paged) status = check_int("cache.max_pages_per_seq", view.max_pages_per_seq, 0, INT32_MAX);
    if (status) return status;
    cache->num_blocks = paged ? view.num_pages : view.batch;
    cache->block_len = paged ? view.page_size : view.capacity;
    cache->quantised = view.dtype == HEED_I8;
    Shape shape = {{cache->num_blocks, cache->block_len, view.num_kv_heads, view.head_dim}};
    status = make_view("cache.k", shape, view.k_layout, Access::write, &cache->k);
    shape.extent[3] = view.head_dim_v;
    if (!status) status = make_view("cache.v", shape, view.v_layout, Access::write, &cache->v);
    if (status || !cache->quantised) return status;
    shape.extent[3] = 1;
    const heed_layout packed = {};
    status = make_view("cache.k_scale", shape, packed, Access::write, &cache->k_scale);
    return status ? status : make_view("cache.v_scale", shape, packed, Access::write, &cache->v_scale);
}

heed_status add_cache_memory(const heed_kv_view &view, const KvCache &cache, MemoryRanges *ranges) {
    heed_status status = ranges->add("cache.k", view.k, view.dtype, cache.k.span, Access::write);
    if (!status) {
        const bool both = cache.k.span > 0 && view.k.data != nullptr && view.v.data != nullptr;
        status = ranges->add("cache.v", view.v, view.dtype, cache.v.span, Access::write,
                             both && interleave(view, cache) ? "cache.k" : nullptr);
    }
    if (status || !cache.quantised) return status;
    status = ranges->add("cache.k_scale", view.k_scale, HEED_F32, cache.k_scale.span, Access::write);
    return status ? status : ranges->add("cache.v_scale", view.v_scale, HEED_F32, cache.v_scale.span, Access::write);
}

}  // namespace heed
