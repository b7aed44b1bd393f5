// heed_layer_prepare: memory into the cache of a cross attention layer.
#include <algorithm>
#include <cinttypes>

#include "layer/cache.h"
#include "layer/forward.h"
#include "layer/steps.h"
#include "ranges.h"

namespace heed {
namespace {

heed_status check_prepare(const heed_layer &layer, const heed_cache *cache, int32_t batch, int32_t memory_len,
                          const heed_tensor *memory, const int32_t *memory_lens, const heed_execution &execution) {
    const heed_layer_config &c = layer.config;
    if (!c.cross) return fail(HEED_INVALID_ARGUMENT, "the layer is self attention; heed_layer_prepare is for cross");
    heed_status status = check_cache_of(layer, *cache);
    if (!status) status = check_run(layer, execution);
    if (!status) status = check_int("memory_len", memory_len, 0, std::min(cache->capacity, c.max_kv_len));
    if (!status && batch != cache->batch) {
        return fail(HEED_INVALID_ARGUMENT, "batch is %d; cache has %d sequences", batch, cache->batch);
    }
    if (!status) status = check_int("batch", batch, 0, c.max_batch);
    if (!status) status = check_workspace(layer.workspace_bytes, execution);
    MemoryRanges ranges;
    if (!status) status = add_workspace(layer, execution, 0, &ranges);
    if (!status && memory_lens != nullptr) status = ranges.add("memory_lens", memory_lens, batch, 4, Access::read);
    return status ? status
                  : ranges.add("memory", *memory, c.dtype, int64_t{batch} * memory_len * c.dim_memory, Access::read);
}

// All pages become free before they are handed out again.
heed_status check_pages(const heed_cache &cache, const int32_t *lens) {
    int64_t needed = 0;
    for (int32_t b = 0; cache.storage == HEED_KV_PAGED && b < cache.batch; b++) {
        needed += (int64_t{lens[b]} + cache.page_size - 1) / cache.page_size;
    }
    if (needed <= cache.num_pages) return HEED_OK;
    return fail(HEED_OUT_OF_MEMORY, "the cache has %d pages; memory needs %" PRId64, cache.num_pages, needed);
}

heed_status prepare(const heed_layer &layer, heed_cache *cache, int32_t batch, int32_t memory_len,
                    const heed_tensor &memory, const int32_t *memory_lens, const heed_execution &execution) {
    LayerRun run = {"heed_layer_prepare", layer, execution, {}};
    const LayerSizes sizes = {batch, 0, memory_len, memory_len};
    cuda::ScopedContext context;
    HeapArray<char> lists;
    heed_status status = layer.device.backend().enter_call(layer.device, execution, &context);
    if (!status) status = take_lists(layer, run.name, sizes, &lists, &run.memory);
    if (status) return status;
    cache->stream = execution.stream;
    lay_out_memory(layer, sizes, execution.workspace, execution.workspace_bytes, &run.memory);
    status = read_lens("memory_lens", memory_lens, batch, memory_len, run.memory.new_lens);
    if (!status) status = check_pages(*cache, run.memory.new_lens);
    if (!status && memory_len > 0) {
        status = project(run, memory.data, batch, memory_len, false, true);
        if (!status) status = normalise(run, false, int64_t{batch} * memory_len);
    }
    if (status) return status;
    // What was projected before is replaced: nothing refers to it but its lengths.
    heed_cache_reset(cache);
    status = cache->reserve(run.memory.new_lens);
    if (!status && memory_len > 0) status = append(run, cache, memory_len);
    if (status) heed_cache_reset(cache);
    return status;
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_layer_prepare(const heed_layer *layer, heed_cache *cache, int32_t batch, int32_t memory_len,
                                          const heed_tensor *memory, const int32_t *memory_lens,
                                          const heed_execution *execution) {
    const char *const missing = layer == nullptr       ? "layer"
                                : cache == nullptr     ? "cache"
                                : memory == nullptr    ? "memory"
                                : execution == nullptr ? "execution"
                                                       : nullptr;
    if (missing != nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_layer_prepare: %s is NULL", missing);
    heed_execution run = *execution;
    if (run.num_threads == 0) run.num_threads = layer->config.max_threads;
    const heed_status status = heed::check_prepare(*layer, cache, batch, memory_len, memory, memory_lens, run);
    return status ? status : heed::prepare(*layer, cache, batch, memory_len, *memory, memory_lens, run);
}
