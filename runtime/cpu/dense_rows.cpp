#include "runtime/cpu/dense_rows.h"

#include <algorithm>
#include <cstring>

#include "runtime/ops/op_run.h"
#include "runtime/plan.h"
#include "runtime/scratch.h"
#include "runtime/status.h"
#include "runtime/tasks.h"

namespace heed {
namespace {

// Blocks of rows that read a key: from so many on a copy pays, sooner where the keys and values of a head do not stay
// in half of an L2 cache. Measured on a Xeon (Emerald Rapids, 2 threads), keys in place and copied, f32 in the default
// layout: 5 blocks (512 causal queries, 32 heads of 128) 11.9 and 12.6 ms, 11 blocks of 256 KiB (512 queries, 12 heads
// of 64, 8 sequences) 32.0 and 32.9, 11 of 1 MiB (1024 causal queries, 16 heads of 128) 22.2 and 20.2, 21 (1024
// queries) 43.3 and 35.0.
constexpr int64_t repaying_blocks = 14, repaying_blocks_of_large_heads = 8, large_head_bytes = 512 << 10;

constexpr int64_t copied_keys = 32;  // that a thread copies at a time

bool is_dense(const View &rows) { return rows.extent[2] == 1 || rows.stride[1] == rows.extent[3]; }

// Rows begin an odd number of cache lines apart: a tile of values reads a line of each key of a block, and these spread
// over all sets of the L1 cache.
int64_t row_pitch(const View &rows, int64_t element) {
    constexpr int64_t line = 64;
    return ((rows.extent[3] * element + line - 1) / line | 1) * line / element;
}

View dense_view(const View &rows, int64_t element) {
    View dense = rows;
    dense.stride[1] = row_pitch(rows, element);
    dense.stride[2] = rows.extent[1] * dense.stride[1];
    dense.stride[0] = rows.extent[2] * dense.stride[2];
    return dense;
}

Size copied_elements(const View &rows, int64_t element) {
    return Size{rows.extent[0]} * rows.extent[1] * rows.extent[2] * row_pitch(rows, element);
}

// Where an index of 32 bits reaches them.
bool may_copy(const KernelViews &kv, int64_t element) {
    return copied_elements(kv.k, element).at_most(max_int32) && copied_elements(kv.v, element).at_most(max_int32);
}

// The slots of each page (a sequence, or all of them) that some query sees.
void fill_ranges(const KernelBuffer &tasks, int64_t num_pages, KeyRange *ranges) {
    std::fill_n(ranges, num_pages, KeyRange{max_int32, 0});
    for (int32_t n = 0; n < tasks.extent[1]; n++) {
        const int32_t *const task = static_cast<const int32_t *>(tasks.data) + int64_t{n} * num_task_fields;
        if (task[task_head] != 0 || task[task_first_row] != 0) continue;
        const KeyRange seen = seen_keys(task);
        if (seen.begin >= seen.end) continue;
        KeyRange &range = ranges[task[task_kv_batch]];
        range.begin = std::min(range.begin, task[task_first_key] + seen.begin);
        range.end = std::max(range.end, task[task_first_key] + seen.end);
    }
}

// Query rows that read a key, of all heads of its group: on average where it is causal.
int64_t rows_of_key(const heed_problem &p) {
    int64_t rows = p.max_q_len;
    if (p.causal) rows -= rows * std::min(p.max_q_len, p.max_kv_len) / std::max(p.max_kv_len, 1) / 2;
    if (p.window_left >= 0) rows = std::min<int64_t>(rows, int64_t{p.window_left} + 1);
    return rows * (p.num_heads / p.num_kv_heads);
}

// One tensor of rows, and its copy.
struct RowCopy {
    const char *from;
    char *to;
    View source, dense;
    int64_t element;  // bytes

    // Source rows of a slot are neighbours in most layouts.
    void run(int64_t page, int64_t first, int64_t last) const {
        const auto row_bytes = static_cast<size_t>(source.extent[3] * element);
        for (int64_t slot = first; slot < last; slot++) {
            for (int64_t head = 0; head < source.extent[2]; head++) {
                const auto at = [&](const View &view) {
                    return (page * view.stride[0] + slot * view.stride[1] + head * view.stride[2]) * element;
                };
                std::memcpy(to + at(dense), from + at(source), row_bytes);
            }
        }
    }
};

}  // namespace

bool makes_rows_dense(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    const bool in_place = p.kv_storage != HEED_KV_PAGED && p.kv_dtype != HEED_I8;
    if (plan.kernel->phase != Phase::prefill || plan.kernel->packed_bytes > 0 || !in_place) return false;
    const KernelViews kv = kernel_views(p, plan.views);
    const int64_t bytes_of_key = (int64_t{p.head_dim} + p.head_dim_v) * dtype_bytes(p.kv_dtype);
    const bool large = p.max_kv_len * bytes_of_key > large_head_bytes;
    const int64_t blocks = large ? repaying_blocks_of_large_heads : repaying_blocks;
    const bool pays = rows_of_key(p) >= blocks * plan.kernel->row_block;
    return pays && !(is_dense(kv.k) && is_dense(kv.v)) && may_copy(kv, dtype_bytes(p.kv_dtype));
}

Size dense_rows_bytes(const heed_plan &plan) {
    if (!makes_rows_dense(plan)) return {};
    const KernelViews kv = kernel_views(plan.problem, plan.views);
    const int64_t element = dtype_bytes(plan.problem.kv_dtype);
    const int64_t rows = (copied_elements(kv.k, element).value + copied_elements(kv.v, element).value) * element;
    return Size{kv.k.extent[0]} * int64_t{sizeof(KeyRange)} + rows + 3 * scratch_alignment;
}

heed_status make_rows_dense(const heed_plan &plan, const heed_execution &execution, char *memory, KernelCall *call) {
    const KernelViews kv = kernel_views(plan.problem, plan.views);
    const int64_t element = dtype_bytes(plan.problem.kv_dtype), pages = kv.k.extent[0], slots = kv.k.extent[1];
    auto *const ranges = reinterpret_cast<KeyRange *>(memory);
    char *const k_rows = memory + round_up(pages * int64_t{sizeof(KeyRange)}, scratch_alignment);
    char *const v_rows = k_rows + round_up(copied_elements(kv.k, element).value * element, scratch_alignment);
    const RowCopy copies[] = {
        {static_cast<const char *>(call->k.data), k_rows, kv.k, dense_view(kv.k, element), element},
        {static_cast<const char *>(call->v.data), v_rows, kv.v, dense_view(kv.v, element), element}};
    fill_ranges(call->tasks, pages, ranges);
    set_keys({k_rows, copies[0].dense}, {v_rows, copies[1].dense}, plan.problem.kv_dtype, call);

    const int64_t chunks = (slots + copied_keys - 1) / copied_keys;
    const auto block = [&](int64_t index, int32_t, char(&)[512]) {
        const int64_t page = index / chunks, first = index % chunks * copied_keys;
        const KeyRange range = ranges[page];
        for (const RowCopy &copy : copies) {
            copy.run(page, std::max<int64_t>(first, range.begin), std::min<int64_t>(first + copied_keys, range.end));
        }
        return 0;
    };
    const auto bytes = static_cast<double>(2 * dense_rows_bytes(plan).value);
    return run_op("heed_execute", &execution, op_threads(&execution, bytes), pages * chunks, block);
}

}  // namespace heed
