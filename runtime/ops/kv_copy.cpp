// heed_kv_copy. A range copies tokens to the same places of another block, so each token place is a problem of its own.
// Ranges whose source another range writes go first, through memory of the call; all others are copied directly.
#include <algorithm>
#include <cinttypes>

#include "cuda/op_session.h"
#include "cuda/token_launches.h"
#include "ops/heap_array.h"
#include "ops/kv_cache.h"
#include "ops/op_run.h"
#include "read_once.h"

namespace heed {
namespace {

// What the saved sources may take together, unless one token of each takes more.
constexpr int64_t saved_bytes = 1 << 20;

// One of k, v and the scales.
struct Plane {
    const void *data;
    const View *view;
    heed_dtype dtype;
    int64_t row_bytes;
};

struct CopyCall {
    KvCache cache;
    Plane planes[4];
    int32_t num_planes = 0, num_heads = 0;
    int64_t token_bytes = 0;
    HeapArray<heed_kv_range> ranges;  // private; the first num_saved ones need their sources saved
    int64_t num_ranges = 0, num_saved = 0;
    HeapArray<char> saved_on_heap;
    char *saved = nullptr;     // the same, or the workspace on the device
    int32_t saved_tokens = 1;  // of each saved source at once
};

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

// For the sources to save, of one token each at least.
heed_status find_memory(const heed_execution *execution, CopyCall *call) {
    int64_t least = 0;
    if (!checked_mul(call->num_saved, call->token_bytes, &least)) least = INT64_MAX;
    const auto most = [&](int64_t bytes) {
        return static_cast<int32_t>(std::clamp<int64_t>(bytes / least, 1, call->cache.block_len));
    };
    if (!runs_on_cuda(execution)) {
        call->saved_tokens = most(saved_bytes);
        const heed_status status = call->saved_on_heap.allocate("heed_kv_copy", least * call->saved_tokens);
        call->saved = call->saved_on_heap.data();
        return status;
    }
    if (execution->workspace == nullptr || execution->workspace_bytes < static_cast<size_t>(least)) {
        return fail(HEED_WORKSPACE_TOO_SMALL,
                    "execution.workspace_bytes is %zu; on CUDA the ranges whose source is overwritten need %" PRId64,
                    execution->workspace == nullptr ? 0 : execution->workspace_bytes, least);
    }
    call->saved = static_cast<char *>(execution->workspace);
    call->saved_tokens = most(static_cast<int64_t>(std::min<size_t>(execution->workspace_bytes, INT64_MAX)));
    return HEED_OK;
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
    return first == 0 ? HEED_OK : find_memory(execution, call);
}

heed_status check_copy_call(const heed_kv_view &view, const heed_kv_range *ranges, int32_t num_ranges,
                            const heed_execution *execution, CopyCall *call) {
    heed_status status = check_execution(execution);
    if (!status) status = check_int("num_ranges", num_ranges, 0, INT32_MAX);
    if (!status) status = check_cache(view, &call->cache);
    MemoryRanges memory;
    if (!status && runs_on_cuda(execution)) status = add_workspace(*execution, &memory);
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

Rows rows_at(const Plane &plane, int32_t block, int32_t token) {
    return rows_of(plane.data, *plane.view, plane.dtype, block, token);
}

// Calls visit(index, copy) for index 0..count-1; copy(plane, from, to, tokens) copies rows of that plane.
struct CpuCopies {
    const CopyCall &call;
    const heed_execution *execution;
    int32_t threads;

    template <typename Visit>
    heed_status run(int64_t count, const Visit &visit) const {
        const auto copy = [this](int32_t p, const Rows &from, const Rows &to, int32_t tokens) {
            copy_rows(from, to, tokens, call.num_heads, call.planes[p].row_bytes);
        };
        return run_op("heed_kv_copy", execution, threads, count, [&](int64_t index, int32_t, char(&)[512]) {
            visit(index, copy);
            return 0;
        });
    }
};

// The same in launches, plane by plane. Rows of neighbouring heads count as one.
struct CudaCopies {
    const CopyCall &call;
    cuda::OpSession *session;

    template <typename Visit>
    heed_status run(int64_t count, const Visit &visit) const {
        heed_status status = HEED_OK;
        for (int32_t p = 0; p < call.num_planes && !status; p++) {
            const Plane &plane = call.planes[p];
            const bool joined = call.num_heads == 1 || plane.view->stride[2] == plane.view->extent[3];
            const int64_t length = plane.row_bytes * (joined ? call.num_heads : 1);
            if (length > INT32_MAX) return fail(HEED_UNSUPPORTED, "a token of the cache has more than 2^31-1 bytes");
            cuda::TokenMoves moves({&session->row(), joined ? 1 : call.num_heads, static_cast<int32_t>(length)},
                                   session->launches());
            const auto copy = [&](int32_t q, const Rows &from, const Rows &to, int32_t tokens) {
                if (q == p && !status) status = moves.add({from, to, nullptr, tokens});
            };
            for (int64_t index = 0; index < count; index++) visit(index, copy);
            if (!status) status = moves.flush();
        }
        return status;
    }
};

template <typename Copy>
void copy_direct(const CopyCall &call, const heed_kv_range &r, const Copy &copy) {
    for (int32_t p = 0; p < call.num_planes; p++) {
        copy(p, rows_at(call.planes[p], r.from, r.begin), rows_at(call.planes[p], r.to, r.begin), r.count);
    }
}

enum class Direction { save, restore };

// The tokens of range `index` in [first, first + saved_tokens), between the cache and the call's memory.
template <typename Copy>
void move_saved(const CopyCall &call, int64_t index, int64_t first, Direction direction, const Copy &copy) {
    const heed_kv_range &r = call.ranges[index];
    const auto begin = static_cast<int32_t>(std::max<int64_t>(r.begin, first));
    const auto end = static_cast<int32_t>(std::min<int64_t>(int64_t{r.begin} + r.count, first + call.saved_tokens));
    if (begin >= end) return;
    char *memory = call.saved + index * call.saved_tokens * call.token_bytes;
    for (int32_t p = 0; p < call.num_planes; p++) {
        const Plane &plane = call.planes[p];
        const Rows packed = {memory, plane.row_bytes * call.num_heads, plane.row_bytes};
        if (direction == Direction::save) {
            copy(p, rows_at(plane, r.from, begin), packed, end - begin);
        } else {
            copy(p, packed, rows_at(plane, r.to, begin), end - begin);
        }
        memory += packed.token_stride * call.saved_tokens;
    }
}

// Token places of all saved ranges, some at a time: all sources are saved before any is overwritten.
template <typename Copies>
heed_status copy_saved(const CopyCall &call, const Copies &copies) {
    int64_t first = INT64_MAX, end = 0;
    for (int64_t i = 0; i < call.num_saved; i++) {
        first = std::min<int64_t>(first, call.ranges[i].begin);
        end = std::max<int64_t>(end, int64_t{call.ranges[i].begin} + call.ranges[i].count);
    }
    for (; first < end; first += call.saved_tokens) {
        for (const Direction direction : {Direction::save, Direction::restore}) {
            const heed_status status = copies.run(call.num_saved, [&](int64_t index, const auto &copy) {
                move_saved(call, index, first, direction, copy);
            });
            if (status) return status;
        }
    }
    return HEED_OK;
}

template <typename Copies>
heed_status copy_all(const CopyCall &call, const Copies &copies) {
    if (const heed_status status = copy_saved(call, copies)) return status;
    return copies.run(call.num_ranges - call.num_saved, [&](int64_t index, const auto &copy) {
        copy_direct(call, call.ranges[call.num_saved + index], copy);
    });
}

heed_status copy(const CopyCall &call, const heed_execution *execution) {
    if (call.num_ranges == 0) return HEED_OK;
    if (runs_on_cuda(execution)) {
        cuda::OpSession session;
        const heed_status status = session.open(*execution, Op::kv_copy, HEED_U8, HEED_U8);
        return status ? status : copy_all(call, CudaCopies{call, &session});
    }
    double tokens = 0;
    for (int64_t i = 0; i < call.num_ranges; i++) tokens += call.ranges[i].count;
    const int32_t threads = op_threads(execution, 2 * tokens * static_cast<double>(call.token_bytes));
    return copy_all(call, CpuCopies{call, execution, threads});
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_kv_copy(const heed_kv_view *cache, const heed_kv_range *ranges, int32_t num_ranges,
                                    const heed_execution *execution) {
    if (cache == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_kv_copy: cache is NULL");
    const heed_kv_view view = *cache;
    heed::CopyCall call;
    const heed_status status = heed::check_copy_call(view, ranges, num_ranges, execution, &call);
    return status ? status : heed::copy(call, execution);
}
