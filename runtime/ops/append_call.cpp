#include "runtime/ops/append_call.h"

#include <algorithm>
#include <cinttypes>

#include "runtime/ops/op_run.h"
#include "runtime/read_once.h"

namespace heed {
namespace {

bool is_paged(const heed_kv_append_args &a) { return a.cache.storage == HEED_KV_PAGED; }

// Tokens that the cache can hold of one sequence.
int64_t capacity_of(const heed_kv_view &view) {
    return view.storage == HEED_KV_PAGED ? int64_t{view.max_pages_per_seq} * view.page_size : view.capacity;
}

heed_status check_fields(const heed_kv_append_args &a, AppendCall *call) {
    heed_status status = check_float_dtype("dtype", a.dtype);
    if (!status) status = check_execution(&a.execution);
    if (!status) status = check_int("new_len", a.new_len, 0, INT32_MAX);
    if (!status) status = check_cache(a.cache, &call->cache);
    if (!status && a.cache.dtype != a.dtype && a.cache.dtype != HEED_I8) {
        return fail(HEED_INVALID_ARGUMENT, "cache.dtype is %s (%d); it must be dtype, which is %s, or HEED_I8",
                    dtype_name(a.cache.dtype), static_cast<int>(a.cache.dtype), dtype_name(a.dtype));
    }
    if (!status && a.rope != nullptr) status = check_tables("rope", *a.rope, a.cache.head_dim);
    return status;
}

heed_status check_memory(const heed_kv_append_args &a, AppendCall *call) {
    const heed_kv_view &c = a.cache;
    const int64_t table_entries = is_paged(a) ? int64_t{c.batch} * c.max_pages_per_seq : 0;
    const int64_t new_tokens = int64_t{c.batch} * a.new_len;
    MemoryRanges ranges;
    heed_status status = add_workspace(a.execution, &ranges);
    if (!status) status = add_cache_memory(c, call->cache, &ranges);
    if (!status) status = ranges.add("cache.kv_lens", c.kv_lens, c.batch, sizeof(int32_t), Access::write);
    if (!status) status = ranges.add("k_new", a.k_new, a.dtype, call->k_new.span, Access::read);
    if (!status) status = ranges.add("v_new", a.v_new, a.dtype, call->v_new.span, Access::read);
    if (!status && a.new_lens != nullptr) {
        status = ranges.add("new_lens", a.new_lens, c.batch, sizeof(int32_t), Access::read);
    }
    if (!status) status = ranges.add("cache.page_table", c.page_table, table_entries, sizeof(int32_t), Access::read);
    if (status) return status;
    const heed_rope_tables none = {};
    return make_rotation("rope", a.execution.device, a.rope != nullptr ? *a.rope : none, a.dtype, c.head_dim,
                         a.rope != nullptr ? a.rope->max_position : 0, new_tokens, &ranges, &call->rotation);
}

heed_status read_lengths(const heed_kv_append_args &a, AppendCall *call) {
    const int64_t capacity = capacity_of(a.cache);
    if (const heed_status status = call->lengths.allocate("heed_kv_append", a.cache.batch, &call->memory))
        return status;
    for (int32_t b = 0; b < a.cache.batch; b++) {
        const AppendLengths lens = {read_once(a.cache.kv_lens[b]),
                                    a.new_lens != nullptr ? read_once(a.new_lens[b]) : a.new_len};
        if (lens.new_len < 0 || lens.new_len > a.new_len) {
            return fail(HEED_INVALID_ARGUMENT, "new_lens[%d] is %d; it must be 0..%d, the new_len", b, lens.new_len,
                        a.new_len);
        }
        if (lens.kv_len < 0 || lens.kv_len > capacity) {
            return fail(HEED_INVALID_ARGUMENT,
                        "cache.kv_lens[%d] is %d; it must be 0..%" PRId64 ", the cache's capacity", b, lens.kv_len,
                        capacity);
        }
        const int64_t total = int64_t{lens.kv_len} + lens.new_len;
        if (total > capacity || total > INT32_MAX) {
            return fail(HEED_INVALID_ARGUMENT,
                        "cache.kv_lens[%d] is %d and %d tokens are to follow; the cache's capacity is %" PRId64, b,
                        lens.kv_len, lens.new_len, std::min<int64_t>(capacity, INT32_MAX));
        }
        call->lengths[b] = lens;
        call->num_tokens += lens.new_len;
    }
    return HEED_OK;
}

// Calls visit(segment with block = index of the sequence's block) for the segments of sequence b, in order.
template <typename Visit>
heed_status for_segments(const AppendCall &call, int32_t b, const Visit &visit) {
    const AppendLengths lens = call.lengths[b];
    for (int32_t t = 0; t < lens.new_len;) {
        const int32_t position = lens.kv_len + t, slot = position % call.cache.block_len;
        const int32_t count = std::min({call.cache.block_len - slot, lens.new_len - t, call.tokens_per_segment});
        if (const heed_status status =
                visit(AppendSegment{position / call.cache.block_len, slot, b, t, count, position})) {
            return status;
        }
        t += count;
    }
    return HEED_OK;
}

// Each entry of the page table is read once.
heed_status read_page(const heed_kv_append_args &a, AppendSegment *segment) {
    const int64_t entry = int64_t{segment->sequence} * a.cache.max_pages_per_seq + segment->block;
    const int32_t page = read_once(a.cache.page_table[entry]);
    if (page < 0 || page >= a.cache.num_pages) {
        return fail(HEED_INVALID_ARGUMENT,
                    "cache.page_table[%d][%" PRId64 "] is %d; it must be 0 or more, below num_pages, %d",
                    segment->sequence, segment->block, page, a.cache.num_pages);
    }
    segment->block = page;
    return HEED_OK;
}

heed_status list_segments(const heed_kv_append_args &a, AppendCall *call) {
    int64_t count = 0;
    for (int32_t b = 0; b < a.cache.batch; b++) {
        for_segments(*call, b, [&](const AppendSegment &) {
            count++;
            return HEED_OK;
        });
    }
    if (const heed_status status = call->segments.allocate("heed_kv_append", count, &call->memory)) return status;
    for (int32_t b = 0; b < a.cache.batch; b++) {
        const heed_status status = for_segments(*call, b, [&](AppendSegment segment) {
            if (is_paged(a)) {
                if (const heed_status bad = read_page(a, &segment)) return bad;
            } else {
                segment.block = segment.sequence;
            }
            call->segments[call->num_segments++] = segment;
            return HEED_OK;
        });
        if (status) return status;
    }
    return HEED_OK;
}

// Pages may be shared by readers only. Sorts the segments by their slots, which changes no result.
heed_status check_slots(AppendCall *call) {
    AppendSegment *const begin = call->segments.data(), *const end = begin + call->num_segments;
    std::sort(begin, end, [](const AppendSegment &x, const AppendSegment &y) {
        return x.block != y.block ? x.block < y.block : x.slot < y.slot;
    });
    for (const AppendSegment *s = begin; s + 1 < end; s++) {
        if (s[0].block != s[1].block || s[0].slot + s[0].num_tokens <= s[1].slot) continue;
        return fail(HEED_INVALID_ARGUMENT,
                    "cache.page_table sends two tokens, of sequences %d and %d, to slot %d of page %" PRId64
                    "; each slot may be written once",
                    s[0].sequence, s[1].sequence, s[1].slot, s[0].block);
    }
    return HEED_OK;
}

// Positions of the tokens that are appended.
heed_status check_positions(const heed_kv_append_args &a, const AppendCall &call) {
    if (call.rotation.num_pairs == 0) return HEED_OK;
    const int32_t *const positions = call.rotation.positions;
    const int32_t limit = a.rope->max_position;
    for (int32_t b = 0; b < a.cache.batch; b++) {
        const AppendLengths lens = call.lengths[b];
        if (positions == nullptr && lens.new_len > 0 && int64_t{lens.kv_len} + lens.new_len > limit) {
            return fail(HEED_INVALID_ARGUMENT,
                        "rope.max_position is %d; the tokens of sequence %d are at %d..%d, which must be below it",
                        limit, b, lens.kv_len, lens.kv_len + lens.new_len - 1);
        }
        for (int32_t t = 0; positions != nullptr && t < lens.new_len; t++) {
            const int32_t position = read_once(positions[int64_t{b} * a.new_len + t]);
            if (position >= 0 && position < limit) continue;
            return fail(HEED_INVALID_ARGUMENT,
                        "rope.positions[%d][%d] is %d; it must be 0 or more, below max_position, %d", b, t, position,
                        limit);
        }
    }
    return HEED_OK;
}

}  // namespace

heed_status check_append(const heed_kv_append_args &a, AppendCall *call) {
    heed_status status = check_fields(a, call);
    const heed_kv_view &c = a.cache;
    Shape shape = {{c.batch, a.new_len, c.num_kv_heads, c.head_dim}};
    if (!status) status = make_view("k_new", shape, a.k_new_layout, Access::read, &call->k_new);
    shape.extent[3] = c.head_dim_v;
    if (!status) status = make_view("v_new", shape, a.v_new_layout, Access::read, &call->v_new);
    if (!status) status = check_memory(a, call);
    if (status) return status;
    status = backend_of(a.execution.device).prepare_append(a, call);
    if (!status) status = read_lengths(a, call);
    if (!status) status = list_segments(a, call);
    if (!status) status = check_slots(call);
    return status ? status : check_positions(a, *call);
}

}  // namespace heed
