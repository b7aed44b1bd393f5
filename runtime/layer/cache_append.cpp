// heed_cache_append: keys and values that the layer has not made.
#include <cinttypes>
#include <vector>

#include "runtime/api.h"
#include "runtime/layer/cache.h"
#include "runtime/ranges.h"
#include "runtime/read_once.h"
#include "runtime/status.h"

namespace heed {
namespace {

// What reserve needs to be right: each length is read once.
heed_status read_new_lens(const heed_cache &cache, int32_t new_len, const int32_t *new_lens,
                          std::vector<int32_t> *copy) {
    heed_status status = check_int("new_len", new_len, 0, INT32_MAX);
    for (int32_t b = 0; !status && b < cache.batch; b++) {
        const int32_t len = new_lens == nullptr ? new_len : read_once(new_lens[b]);
        const int64_t total = int64_t{cache.kv_lens[static_cast<size_t>(b)]} + len;
        if (len < 0 || len > new_len) {
            return fail(HEED_INVALID_ARGUMENT, "new_lens[%d] is %d; it must be 0..%d, the new_len", b, len, new_len);
        }
        if (total > cache.capacity) {
            return fail(HEED_INVALID_ARGUMENT, "sequence %d would have %" PRId64 " tokens; the cache's capacity is %d",
                        b, total, cache.capacity);
        }
        copy->push_back(len);
    }
    return status;
}

heed_status append_to(heed_cache *cache, const std::vector<int32_t> &new_lens, heed_kv_append_args *args) {
    DeviceScope scope;
    heed_status status = cache->device.backend().enter(cache->device, &scope);
    if (status) return status;
    cache->stream = args->execution.stream;
    const std::vector<int32_t> past = cache->kv_lens;
    status = cache->reserve(new_lens.data());
    args->new_lens = new_lens.data();
    args->cache = cache->view();
    if (!status) status = heed_kv_append(args);
    for (int32_t b = 0; status && b < cache->batch; b++) cache->truncate(b, past[static_cast<size_t>(b)]);
    return status;
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_cache_append(heed_cache *cache, int32_t new_len, const int32_t *new_lens,
                                         const heed_tensor *k_new, const heed_layout *k_new_layout,
                                         const heed_tensor *v_new, const heed_layout *v_new_layout,
                                         const heed_execution *execution) {
    constexpr const char *function = "heed_cache_append";
    return heed::run_api(function, [&] {
        heed_status status = heed::check_given(function, "cache", cache);
        if (!status) status = heed::check_given(function, "k_new", k_new);
        if (!status) status = heed::check_given(function, "v_new", v_new);
        if (status) return status;
        heed_kv_append_args args = {};
        args.struct_size = sizeof(args);
        args.dtype = cache->layer_dtype;
        args.new_len = new_len;
        args.k_new = *k_new;
        args.v_new = *v_new;
        if (k_new_layout != nullptr) args.k_new_layout = *k_new_layout;
        if (v_new_layout != nullptr) args.v_new_layout = *v_new_layout;
        if (execution != nullptr) args.execution = *execution;
        args.execution.device = cache->device.kind;
        std::vector<int32_t> copy;
        status = heed::read_new_lens(*cache, new_len, new_lens, &copy);
        return status ? status : heed::append_to(cache, copy, &args);
    });
}
