#include "runtime/layer/cache.h"

#include <algorithm>
#include <cinttypes>
#include <limits>
#include <numeric>

#include "runtime/api.h"
#include "runtime/layer/layer.h"
#include "runtime/ranges.h"

namespace {

int32_t pages_of(const heed_cache &cache, int64_t kv_len) {
    return static_cast<int32_t>((kv_len + cache.page_size - 1) / cache.page_size);
}

heed_layout head_by_head(const heed_cache &cache, int64_t head_dim) {
    const int64_t len = cache.block_len();
    return {{cache.num_kv_heads * len * head_dim, head_dim, len * head_dim, 1}};
}

int64_t elements(const heed_cache &cache, int64_t head_dim) {
    return cache.blocks() * cache.num_kv_heads * cache.block_len() * head_dim;
}

}  // namespace

heed_kv_view heed_cache::view() const {
    heed_kv_view view = {};
    view.storage = storage;
    view.dtype = dtype;
    view.batch = batch;
    view.num_kv_heads = num_kv_heads;
    view.head_dim = head_dim;
    view.head_dim_v = head_dim_v;
    view.capacity = storage == HEED_KV_PAGED ? 0 : capacity;
    view.num_pages = num_pages;
    view.page_size = page_size;
    view.max_pages_per_seq = max_pages_per_seq;
    view.k = {k.get(), elements(*this, head_dim), dtype};
    view.v = {v.get(), elements(*this, head_dim_v), dtype};
    view.k_layout = head_by_head(*this, head_dim);
    view.v_layout = head_by_head(*this, head_dim_v);
    const int64_t scales = dtype == HEED_I8 ? elements(*this, 1) : 0;
    view.k_scale = {k_scale.get(), scales, HEED_F32};
    view.v_scale = {v_scale.get(), scales, HEED_F32};
    view.page_table = page_table.data();
    view.kv_lens = const_cast<int32_t *>(kv_lens.data());
    return view;
}

heed_status heed_cache::copy(const heed_kv_range &range) const {
    const heed_kv_view memory = view();
    heed_execution execution = {};
    execution.device = device.kind;
    execution.stream = stream;
    return heed_kv_copy(&memory, &range, 1, &execution);
}

heed_status heed_cache::reserve(const int32_t *new_lens) {
    if (storage != HEED_KV_PAGED) return HEED_OK;
    const auto users = [&](int32_t b, int32_t index) -> int32_t & {
        return page_users[static_cast<size_t>(page(b, index))];
    };
    // Calls visit(b, index of the page, whether it is a shared page that must be copied) for each page that is missing.
    const auto for_each_page = [&](const auto &visit) {
        for (int32_t b = 0; b < batch; b++) {
            const int32_t len = kv_lens[static_cast<size_t>(b)], held = pages_of(*this, len);
            if (new_lens[b] == 0) continue;
            if (len % page_size != 0 && users(b, held - 1) > 1) visit(b, held - 1, true);
            for (int32_t i = held; i < pages_of(*this, int64_t{len} + new_lens[b]); i++) visit(b, i, false);
        }
    };
    // The last of a page's users keeps it. While they are counted an entry of a user that leaves is -2 - page.
    int64_t needed = 0;
    for_each_page([&](int32_t b, int32_t index, bool copied) {
        needed++;
        if (!copied) return;
        users(b, index)--;
        page(b, index) = -2 - page(b, index);
    });
    for (int32_t b = 0; b < batch; b++) {
        const int32_t held = pages_of(*this, kv_lens[static_cast<size_t>(b)]);
        if (held == 0 || page(b, held - 1) > -2) continue;
        page(b, held - 1) = -2 - page(b, held - 1);
        users(b, held - 1)++;
    }
    if (needed > static_cast<int64_t>(free_pages.size())) {
        return heed::fail(HEED_OUT_OF_MEMORY, "the cache has %zu of %d pages free; the new tokens need %" PRId64,
                          free_pages.size(), num_pages, needed);
    }
    heed_status status = HEED_OK;
    for_each_page([&](int32_t b, int32_t index, bool copied) {
        const int32_t fresh = free_pages.back();
        if (copied) {
            if (!status) status = copy({page(b, index), fresh, 0, kv_lens[static_cast<size_t>(b)] % page_size});
            if (status) return;
            users(b, index)--;
        }
        free_pages.pop_back();
        page(b, index) = fresh;
        users(b, index) = 1;
    });
    return status;
}

void heed_cache::truncate(int32_t sequence, int32_t kv_len) {
    int32_t &len = kv_lens[static_cast<size_t>(sequence)];
    for (int32_t i = storage == HEED_KV_PAGED ? pages_of(*this, kv_len) : INT32_MAX; i < max_pages_per_seq; i++) {
        const int32_t freed = page(sequence, i);
        if (freed < 0) break;
        if (--page_users[static_cast<size_t>(freed)] == 0) free_pages.push_back(freed);
        page(sequence, i) = -1;
    }
    len = std::min(len, kv_len);
}

namespace heed {
namespace {

heed_status check_config(const heed_layer_config &layer, const heed_cache_config &c) {
    heed_status status = check_struct_size("heed_cache_config", c.struct_size, sizeof(heed_cache_config));
    if (status) return status;
    if (c.storage != HEED_KV_CONTIGUOUS && c.storage != HEED_KV_PAGED) {
        return fail(HEED_INVALID_ARGUMENT, "storage is %d; it must be HEED_KV_CONTIGUOUS (0) or HEED_KV_PAGED (2)",
                    static_cast<int>(c.storage));
    }
    if (c.dtype != layer.dtype && c.dtype != HEED_I8) {
        return fail(HEED_INVALID_ARGUMENT, "dtype is %s (%d); it must be the layer's, which is %s, or HEED_I8",
                    dtype_name(c.dtype), static_cast<int>(c.dtype), dtype_name(layer.dtype));
    }
    status = check_int("batch", c.batch, 1, INT32_MAX);
    if (!status) status = check_int("capacity", c.capacity, 1, layer.max_kv_len);
    if (!status && c.storage == HEED_KV_PAGED) {
        status = check_int("num_pages", c.num_pages, 1, INT32_MAX);
        if (!status) status = check_int("page_size", c.page_size, 1, INT32_MAX);
    }
    return status;
}

heed_status allocate(heed_cache *cache) {
    const int64_t width = std::max(cache->head_dim, cache->head_dim_v);
    int64_t size = 0;
    if (!checked_mul(cache->blocks() * cache->block_len(), cache->num_kv_heads * width * 4, &size)) {
        return fail(HEED_OUT_OF_MEMORY, "heed_cache_create: no memory for %" PRId64 " blocks of %d tokens",
                    cache->blocks(), cache->block_len());
    }
    heed_status status = HEED_OK;
    const auto take = [&](int64_t head_dim, int64_t element_bytes, OwnedMemory *memory) {
        if (status) return;
        const int64_t bytes = elements(*cache, head_dim) * element_bytes;
        status = cache->device.backend().allocate("heed_cache_create", cache->device, bytes, memory);
    };
    take(cache->head_dim, dtype_bytes(cache->dtype), &cache->k);
    take(cache->head_dim_v, dtype_bytes(cache->dtype), &cache->v);
    if (cache->dtype == HEED_I8) {
        take(1, sizeof(float), &cache->k_scale);
        take(1, sizeof(float), &cache->v_scale);
    }
    if (status) return status;
    cache->kv_lens.assign(static_cast<size_t>(cache->batch), 0);
    if (cache->storage != HEED_KV_PAGED) {
        cache->page_table.resize(static_cast<size_t>(cache->batch));
        std::iota(cache->page_table.begin(), cache->page_table.end(), 0);
        return HEED_OK;
    }
    cache->page_table.assign(static_cast<size_t>(cache->batch) * static_cast<size_t>(cache->max_pages_per_seq), -1);
    cache->page_users.assign(static_cast<size_t>(cache->num_pages), 0);
    for (int32_t page = cache->num_pages; page-- > 0;) cache->free_pages.push_back(page);
    return HEED_OK;
}

// The kernel that appends to the cache.
heed_status check_append_kernel(const heed_layer &layer, heed_dtype dtype) {
    const Backend &backend = layer.device.backend();
    if (dtype != HEED_I8) return backend.check_launches({Op::rope}, dtype);
    const OpKernel *kernel = nullptr;
    return backend.find_kernel(Op::kv_append, layer.config.dtype, HEED_I8, &kernel);
}

heed_status create_cache(const heed_layer &layer, const heed_cache_config &config, heed_cache **result) {
    const heed_layer_config &c = layer.config;
    heed_status status = check_config(c, config);
    if (!status) status = check_append_kernel(layer, config.dtype);
    DeviceScope scope;
    if (!status) status = layer.device.backend().enter(layer.device, &scope);
    if (status) return status;
    auto cache = std::make_unique<heed_cache>();
    cache->device = layer.device;
    cache->storage = config.storage;
    cache->dtype = config.dtype;
    cache->layer_dtype = c.dtype;
    cache->batch = config.batch;
    cache->capacity = config.capacity;
    cache->num_kv_heads = c.num_kv_heads;
    cache->head_dim = c.head_dim;
    cache->head_dim_v = c.head_dim_v;
    if (config.storage == HEED_KV_PAGED) {
        cache->num_pages = config.num_pages;
        cache->page_size = config.page_size;
        cache->max_pages_per_seq = pages_of(*cache, config.capacity);
    }
    status = allocate(cache.get());
    if (!status) *result = cache.release();
    return status;
}

heed_status check_sequence(const heed_cache &cache, const char *name, int32_t sequence) {
    return check_int(name, sequence, 0, cache.batch - 1);
}

heed_status fork(heed_cache *cache, int32_t from, int32_t to) {
    if (from == to) return HEED_OK;
    const int32_t len = cache->kv_lens[static_cast<size_t>(from)];
    if (cache->storage == HEED_KV_PAGED) {
        cache->truncate(to, 0);
        for (int32_t i = 0; i < pages_of(*cache, len); i++) {
            cache->page(to, i) = cache->page(from, i);
            cache->page_users[static_cast<size_t>(cache->page(from, i))]++;
        }
    } else {
        DeviceScope scope;
        heed_status status = cache->device.backend().enter(cache->device, &scope);
        if (!status && len > 0) status = cache->copy({from, to, 0, len});
        if (status) return status;
    }
    cache->kv_lens[static_cast<size_t>(to)] = len;
    return HEED_OK;
}

}  // namespace

heed_status check_cache_of(const heed_layer &layer, const heed_cache &cache) {
    const heed_layer_config &c = layer.config;
    if (cache.device.kind != layer.device.kind) {
        return fail(HEED_INVALID_ARGUMENT, "cache is of layers on %s; this layer is on %s",
                    cache.device.backend().name(), layer.device.backend().name());
    }
    if (cache.device.context_id != layer.device.context_id) {
        return fail(HEED_INVALID_ARGUMENT, "cache is of layers of another CUDA context; it must be of this layer's");
    }
    if (cache.layer_dtype == c.dtype && cache.num_kv_heads == c.num_kv_heads && cache.head_dim == c.head_dim &&
        cache.head_dim_v == c.head_dim_v && cache.capacity <= c.max_kv_len) {
        return HEED_OK;
    }
    return fail(
        HEED_INVALID_ARGUMENT,
        "cache is of %s layers with %d kv heads of %d and %d elements and holds %d tokens; this %s layer has %d "
        "kv heads of %d and %d elements and takes up to %d tokens",
        dtype_name(cache.layer_dtype), cache.num_kv_heads, cache.head_dim, cache.head_dim_v, cache.capacity,
        dtype_name(c.dtype), c.num_kv_heads, c.head_dim, c.head_dim_v, c.max_kv_len);
}

}  // namespace heed

extern "C" {

heed_status heed_cache_create(const heed_layer *layer, const heed_cache_config *config, heed_cache **cache) {
    constexpr const char *function = "heed_cache_create";
    return heed::run_api(function, [&] {
        heed_status status = heed::check_given(function, "cache", cache);
        if (!status) *cache = nullptr;
        if (!status) status = heed::check_given(function, "layer", layer);
        if (!status) status = heed::check_given(function, "config", config);
        return status ? status : heed::create_cache(*layer, *config, cache);
    });
}

void heed_cache_destroy(heed_cache *cache) { delete cache; }

heed_status heed_cache_reset(heed_cache *cache) {
    if (const heed_status status = heed::check_given("heed_cache_reset", "cache", cache)) return status;
    for (int32_t b = 0; b < cache->batch; b++) cache->truncate(b, 0);
    return HEED_OK;
}

heed_status heed_cache_truncate(heed_cache *cache, int32_t sequence, int32_t kv_len) {
    heed_status status = heed::check_given("heed_cache_truncate", "cache", cache);
    if (!status) status = heed::check_sequence(*cache, "sequence", sequence);
    if (!status) status = heed::check_int("kv_len", kv_len, 0, cache->kv_lens[static_cast<size_t>(sequence)]);
    if (!status) cache->truncate(sequence, kv_len);
    return status;
}

heed_status heed_cache_fork(heed_cache *cache, int32_t from, int32_t to) {
    return heed::run_api("heed_cache_fork", [&] {
        heed_status status = heed::check_given("heed_cache_fork", "cache", cache);
        if (!status) status = heed::check_sequence(*cache, "from", from);
        if (!status) status = heed::check_sequence(*cache, "to", to);
        return status ? status : heed::fork(cache, from, to);
    });
}

heed_status heed_cache_view(const heed_cache *cache, heed_kv_view *view) {
    heed_status status = heed::check_given("heed_cache_view", "cache", cache);
    if (!status) status = heed::check_given("heed_cache_view", "view", view);
    if (!status) *view = cache->view();
    return status;
}

}  // extern "C"
