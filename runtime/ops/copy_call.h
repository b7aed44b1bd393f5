// heed_kv_copy's list of what goes where, and in which order. A range copies tokens to the same places of another
// block, so each token place is a problem of its own. Ranges whose source another range writes go first, through memory
// of the call; all others are copied directly.
#pragma once

#include <algorithm>

#include "runtime/ops/heap_array.h"
#include "runtime/ops/kv_cache.h"

namespace heed {

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

    // Tokens of each in so many bytes, of which one takes `least`.
    int32_t tokens_in(int64_t bytes, int64_t least) const {
        return static_cast<int32_t>(std::clamp<int64_t>(bytes / least, 1, cache.block_len));
    }
};

inline Rows rows_at(const Plane &plane, int32_t block, int32_t token) {
    return rows_of(plane.data, *plane.view, plane.dtype, block, token);
}

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

// copies.run(count, visit) calls visit(index, copy) for index 0..count-1; copy(plane, from, to, tokens) copies rows.
template <typename Copies>
heed_status copy_all(const CopyCall &call, const Copies &copies) {
    if (const heed_status status = copy_saved(call, copies)) return status;
    return copies.run(call.num_ranges - call.num_saved, [&](int64_t index, const auto &copy) {
        copy_direct(call, call.ranges[call.num_saved + index], copy);
    });
}

}  // namespace heed
