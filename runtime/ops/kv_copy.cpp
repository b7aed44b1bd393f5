// heed_kv_copy: checks, and which ranges need their sources saved.
#include <algorithm>
#include <cinttypes>

#include "runtime/float_environment.h"
#include "runtime/ops/copy_call.h"
#include "runtime/ops/op_run.h"
#include "runtime/read_once.h"

namespace heed {
namespace {

void add_plane(const heed_tensor &tensor, const View &view, heed_dtype dtype, CopyCall *call) {
    const int64_t row_bytes = view.extent[3] * dtype_bytes(dtype);
    call->planes[call->num_planes++] = {tensor.data, &view, dtype, row_bytes};
    call->token_bytes += row_bytes * view.extent[2];
}

heed_status check_range(const heed_kv_view &view, const KvCache &cache, int32_t index, const heed_kv_range &r) {
    const char *const blocks = view.storage == HEED_KV_PAGED ? "page" : "sequence";
    const char *const field = r.from < 0 || r.from >= cache.num_blocks ? "from" : "to";
    const int32_t block = field[0] == 'f' ? r.from : r.to;
    if (block < 0 || block >= cache.num_blocks) {
        return fail(HEED_INVALID_ARGUMENT, "ranges[%d].%s is %d; it must be a %s, 0..%" PRId64, index, field, block,
                    blocks, cache.num_blocks - 1);
    }
    if (r.begin < 0 || r.begin > cache.block_len) {
        return fail(HEED_INVALID_ARGUMENT, "ranges[%d].begin is %d; it must be 0..%d, the tokens of a %s", index,
                    r.begin, cache.block_len, blocks);
    }
    if (r.count < 0 || r.count > cache.block_len - r.begin) {
        return fail(HEED_INVALID_ARGUMENT, "ranges[%d].count is %d; it must be 0..%d from begin %d on", index, r.count,
                    cache.block_len - r.begin, r.begin);
    }
    return HEED_OK;
}

// Each range is read once.
heed_status read_ranges(const heed_kv_view &view, const heed_kv_range *ranges, int32_t num_ranges, CopyCall *call) {
    if (const heed_status status = call->ranges.allocate("heed_kv_copy", num_ranges)) return status;
    for (int32_t i = 0; i < num_ranges; i++) {
        const heed_kv_range &source = ranges[i];
        const heed_kv_range range = {read_once(source.from), read_once(source.to), read_once(source.begin),
                                     read_once(source.count)};
        if (const heed_status status = check_range(view, call->cache, i, range)) return status;
        if (range.count > 0) call->ranges[call->num_ranges++] = range;
    }
    return HEED_OK;
}

// Sorts by what is written.
heed_status check_slots(CopyCall *call) {
    heed_kv_range *const begin = call->ranges.data(), *const end = begin + call->num_ranges;
    std::sort(begin, end, [](const heed_kv_range &x, const heed_kv_range &y) {
        return x.to != y.to ? x.to < y.to : x.begin < y.begin;
    });
    for (const heed_kv_range *r = begin; r + 1 < end; r++) {
        if (r[0].to != r[1].to || r[0].begin + r[0].count <= r[1].begin) continue;
        return fail(HEED_INVALID_ARGUMENT, "ranges: two of them write token %d of block %d; each may be written once",
                    r[1].begin, r[1].to);
    }
    return HEED_OK;
}

// Whether one of the ranges, which are sorted by what they write, writes what `reader` reads.
bool is_overwritten(const heed_kv_range *begin, const heed_kv_range *end, const heed_kv_range &reader) {
    const heed_kv_range *writer =
        std::lower_bound(begin, end, reader, [](const heed_kv_range &w, const heed_kv_range &r) {
            return w.to != r.from ? w.to < r.from : w.begin + w.count <= r.begin;
        });
    return writer != end && writer->to == reader.from && writer->begin < reader.begin + reader.count;
}

// Drops copies of a block to itself, which change nothing, and puts the ranges to save first.
heed_status order_ranges(const heed_execution *execution, CopyCall *call) {
    heed_kv_range *const begin = call->ranges.data();
    heed_kv_range *const end =
        std::remove_if(begin, begin + call->num_ranges, [](const heed_kv_range &r) { return r.from == r.to; });
    call->num_ranges = end - begin;
    HeapArray<heed_kv_range> ordered;
    if (const heed_status status = ordered.allocate("heed_kv_copy", call->num_ranges)) return status;
    int64_t first = 0, last = call->num_ranges;
    for (const heed_kv_range *r = begin; r < end; r++) ordered[is_overwritten(begin, end, *r) ? first++ : --last] = *r;
    std::copy(ordered.data(), ordered.data() + call->num_ranges, begin);
    call->num_saved = first;
    if (first == 0) return HEED_OK;
    int64_t least = 0;
    if (!checked_mul(call->num_saved, call->token_bytes, &least)) least = INT64_MAX;
    return backend_of(execution).find_copy_memory(execution, least, call);
}

heed_status check_copy_call(const heed_kv_view &view, const heed_kv_range *ranges, int32_t num_ranges,
                            const heed_execution *execution, CopyCall *call) {
    heed_status status = check_execution(execution);
    if (!status) status = check_int("num_ranges", num_ranges, 0, INT32_MAX);
    if (!status) status = check_cache(view, &call->cache);
    MemoryRanges memory;
    if (!status) status = backend_of(execution).add_copy_workspace(execution, &memory);
    if (!status) status = add_cache_memory(view, call->cache, &memory);
    if (!status) {
        status = memory.add("ranges", ranges, int64_t{num_ranges} * 4, sizeof(int32_t), Access::read);
    }
    if (status) return status;
    call->num_heads = view.num_kv_heads;
    add_plane(view.k, call->cache.k, view.dtype, call);
    add_plane(view.v, call->cache.v, view.dtype, call);
    if (call->cache.quantised) {
        add_plane(view.k_scale, call->cache.k_scale, HEED_F32, call);
        add_plane(view.v_scale, call->cache.v_scale, HEED_F32, call);
    }
    status = read_ranges(view, ranges, num_ranges, call);
    if (!status) status = check_slots(call);
    return status ? status : order_ranges(execution, call);
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_kv_copy(const heed_kv_view *cache, const heed_kv_range *ranges, int32_t num_ranges,
                                    const heed_execution *execution) {
    const heed::DefaultFloatEnvironment environment;
    if (cache == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_kv_copy: cache is NULL");
    const heed_kv_view view = *cache;
    heed::CopyCall call;
    const heed_status status = heed::check_copy_call(view, ranges, num_ranges, execution, &call);
    return status || call.num_ranges == 0 ? status : heed::backend_of(execution).copy(call, execution);
}
