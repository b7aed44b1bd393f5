// heed_layer_prepare: context into the cache of a cross attention layer.
#include <algorithm>
#include <cinttypes>

#include "runtime/api.h"
#include "runtime/layer/cache.h"
#include "runtime/layer/forward.h"
#include "runtime/layer/steps.h"
#include "runtime/ranges.h"

namespace heed {
namespace {

heed_status check_prepare(const heed_layer &layer, const heed_cache *cache, int32_t batch, int32_t context_len,
                          const heed_tensor *context, const int32_t *context_lens, const heed_execution &execution) {
    const heed_layer_config &c = layer.config;
    if (!c.cross) return fail(HEED_INVALID_ARGUMENT, "the layer is self attention; heed_layer_prepare is for cross");
    heed_status status = check_cache_of(layer, *cache);
    if (!status) status = check_run(layer, execution);
    if (!status) status = check_int("context_len", context_len, 0, std::min(cache->capacity, c.max_kv_len));
    if (!status && batch != cache->batch) {
        return fail(HEED_INVALID_ARGUMENT, "batch is %d; cache has %d sequences", batch, cache->batch);
    }
    if (!status) status = check_int("batch", batch, 0, c.max_batch);
    if (!status) status = check_workspace(layer.workspace_bytes, execution);
    MemoryRanges ranges;
    if (!status) status = add_workspace(layer, execution, 0, &ranges);
    if (!status && context_lens != nullptr) status = ranges.add("context_lens", context_lens, batch, 4, Access::read);
    return status
               ? status
               : ranges.add("context", *context, c.dtype, int64_t{batch} * context_len * c.dim_context, Access::read);
}

// All pages become free before they are handed out again.
heed_status check_pages(const heed_cache &cache, const int32_t *lens) {
    int64_t needed = 0;
    for (int32_t b = 0; cache.storage == HEED_KV_PAGED && b < cache.batch; b++) {
        needed += (int64_t{lens[b]} + cache.page_size - 1) / cache.page_size;
    }
    if (needed <= cache.num_pages) return HEED_OK;
    return fail(HEED_OUT_OF_MEMORY, "the cache has %d pages; context needs %" PRId64, cache.num_pages, needed);
}

heed_status prepare(const heed_layer &layer, heed_cache *cache, int32_t batch, int32_t context_len,
                    const heed_tensor &context, const int32_t *context_lens, const heed_execution &execution) {
    LayerRun run = {"heed_layer_prepare", layer, execution, {}};
    const LayerSizes sizes = {batch, 0, context_len, context_len};
    DeviceScope scope;
    HeapArray<char> lists;
    heed_status status = layer.device.backend().enter_call(layer.device, execution, &scope);
    if (!status) status = take_lists(layer, run.name, sizes, &lists, &run.memory);
    if (status) return status;
    cache->stream = execution.stream;
    lay_out_memory(layer, sizes, execution.workspace, execution.workspace_bytes, &run.memory);
    status = read_lens("context_lens", context_lens, batch, context_len, run.memory.new_lens);
    if (!status) status = check_pages(*cache, run.memory.new_lens);
    if (!status && context_len > 0) {
        status = project(run, context.data, batch, context_len, false, true);
        if (!status) status = normalise(run, false, int64_t{batch} * context_len);
    }
    if (status) return status;
    // What was projected before is replaced: nothing refers to it but its lengths.
    heed_cache_reset(cache);
    status = cache->reserve(run.memory.new_lens);
    if (!status && context_len > 0) status = append(run, cache, context_len);
    if (status) heed_cache_reset(cache);
    return status;
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_layer_prepare(const heed_layer *layer, heed_cache *cache, int32_t batch,
                                          int32_t context_len, const heed_tensor *context, const int32_t *context_lens,
                                          const heed_execution *execution) {
    constexpr const char *function = "heed_layer_prepare";
    return heed::run_api(function, [&] {
        heed_status status = heed::check_given(function, "layer", layer);
        if (!status) status = heed::check_given(function, "cache", cache);
        if (!status) status = heed::check_given(function, "context", context);
        if (!status) status = heed::check_given(function, "execution", execution);
        if (status) return status;
        heed_execution run = *execution;
        if (run.num_threads == 0) run.num_threads = layer->config.max_threads;
        status = heed::check_prepare(*layer, cache, batch, context_len, context, context_lens, run);
        return status ? status : heed::prepare(*layer, cache, batch, context_len, *context, context_lens, run);
    });
}
