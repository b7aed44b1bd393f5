#include "runtime/cpu/key_copies.h"

#include <algorithm>
#include <cstring>

#include "runtime/cpu/copy_rows.h"
#include "runtime/cpu/head_copies.h"
#include "runtime/ops/op_run.h"
#include "runtime/plan.h"
#include "runtime/scratch.h"
#include "runtime/status.h"
#include "runtime/tasks.h"
#include "runtime/validate.h"

namespace heed {
namespace {

// Blocks of rows that read a key: from so many on a copy of its head pays, in the cache of a thread. Measured on a Xeon
// (Cascade Lake, 2 threads), keys in place and copied, f32 in the default layout, 512 keys: 1 block of 8 heads of 64
// 0.36 and 0.39 ms, 2 blocks 0.60 and 0.57, 6 blocks 1.80 and 1.62; 2 blocks of 4 sequences of 32 heads of 128 31.7 and
// 27.2 ms, 6 blocks 73.6 and 56.4.
constexpr int64_t repaying_blocks = 2;

// A copy of all heads, that passes through memory, sooner where the keys and values of a head do not stay in half of
// an L2 cache. Measured on a Xeon (Emerald Rapids, 2 threads), likewise: 5 blocks (512 causal queries, 32 heads of 128)
// 11.9 and 12.6 ms, 11 blocks of 256 KiB (512 queries, 12 heads of 64, 8 sequences) 32.0 and 32.9, 11 of 1 MiB (1024
// causal queries, 16 heads of 128) 22.2 and 20.2, 21 (1024 queries) 43.3 and 35.0.
constexpr int64_t blocks_repaying_all = 14, blocks_repaying_large_heads = 8, large_head_bytes = 512 << 10;

constexpr int64_t copied_keys = 32;  // that a thread copies at a time, of all heads

bool is_dense(const View &rows) { return rows.extent[2] == 1 || rows.stride[1] == rows.extent[3]; }

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
    int64_t element, dense_element;  // bytes
    CopyRow copy_row;

    // Source rows of a slot are neighbours in most layouts.
    void run(int64_t page, int64_t first, int64_t last) const {
        for (int64_t slot = first; slot < last; slot++) {
            for (int64_t head = 0; head < source.extent[2]; head++) {
                const auto at = [&](const View &view) {
                    return page * view.stride[0] + slot * view.stride[1] + head * view.stride[2];
                };
                copy_row(from + at(source) * element, to + at(dense) * dense_element, source.extent[3]);
            }
        }
    }
};

bool has_heads_for_threads(const heed_problem &p) { return int64_t{p.batch} * p.num_kv_heads >= p.max_threads; }

// Whether a task may be told where its keys are when it begins: the schedule reads a task's fields inside the task
// (others read those of all before), and the loop over the tasks has another size than loops over swept tasks.
bool may_place_keys(const heed_problem &p, const ProblemViews &views, const Kernel &kernel) {
    return std::strcmp(kernel.schedule, "x86") == 0 &&
           (!sweeps(kernel) || (p.num_heads > 1 && heads_share_masks(p, views)));
}

Size all_bytes(const KernelViews &kv, int64_t element, bool with_values) {
    const int64_t of_values = with_values ? copied_elements(kv.v, element).value : 0;
    const int64_t rows = (copied_elements(kv.k, element).value + of_values) * element;
    return Size{kv.k.extent[0]} * int64_t{sizeof(KeyRange)} + rows + 3 * scratch_alignment;
}

}  // namespace

int64_t row_pitch(const View &rows, int64_t element) {
    constexpr int64_t line = 64;
    return ((rows.extent[3] * element + line - 1) / line | 1) * line / element;
}

CopiesOfHeads copies_of_heads(const heed_problem &p, const ProblemViews &views) {
    constexpr int32_t most_rows = 48;  // of a block, of all instruction sets
    if (p.kv_dtype != p.dtype || (p.kv_storage != HEED_KV_PAGED && p.kv_dtype == HEED_F32)) return CopiesOfHeads::no;
    // An index of 32 bits reaches the copies of any threads: each of up to 8 MiB.
    const Size bytes = HeadCopies::bytes(max_thread_limit, p, kernel_views(p, views), HEED_F32, true);
    if (!bytes.at_most(int64_t{max_int32} * dtype_bytes(HEED_F32))) return CopiesOfHeads::no;
    const bool is_shared = p.num_heads > p.num_kv_heads || p.max_q_len > most_rows;
    return is_shared ? CopiesOfHeads::pay : CopiesOfHeads::possible;
}

KeyCopies key_copies(const heed_problem &p, const ProblemViews &views, const Kernel &kernel) {
    const bool needed = needs_copies(kernel, p.kv_storage, p.kv_dtype);
    if (needed && (p.kv_storage == HEED_KV_PAGED || has_heads_for_threads(p))) return KeyCopies::of_heads;
    const bool in_place = p.kv_storage != HEED_KV_PAGED && p.kv_dtype != HEED_I8;
    if (kernel.phase != Phase::prefill || packs_keys(kernel) || !in_place) return KeyCopies::none;
    const KernelViews kv = kernel_views(p, views);
    const bool with_values = !packs_values(kernel);
    const int64_t element = dtype_bytes(kernel.kv_dtype), rows = rows_of_key(p);
    const auto fits = [&](const View &rows_of) { return copied_elements(rows_of, element).at_most(max_int32); };
    const bool reached = fits(kv.k) && (!with_values || fits(kv.v));
    if (needed) return reached ? KeyCopies::of_all : KeyCopies::of_heads;
    if (is_dense(kv.k) && (!with_values || is_dense(kv.v))) return KeyCopies::none;
    // A thread has heads of its own, and an index of 32 bits reaches all copies.
    if (has_heads_for_threads(p) && may_place_keys(p, views, kernel) &&
        HeadCopies::bytes(p.max_threads, p, kv, kernel.kv_dtype, with_values).at_most(max_int32 * element)) {
        return rows >= repaying_blocks * kernel.row_block ? KeyCopies::of_heads : KeyCopies::none;
    }
    const int64_t bytes_of_key = (int64_t{p.head_dim} + p.head_dim_v) * element;
    const bool large = p.max_kv_len * bytes_of_key > large_head_bytes;
    const int64_t blocks = large ? blocks_repaying_large_heads : blocks_repaying_all;
    return reached && rows >= blocks * kernel.row_block ? KeyCopies::of_all : KeyCopies::none;
}

bool takes_whole_heads(const heed_problem &p, const ProblemViews &views, const Kernel &kernel) {
    return key_copies(p, views, kernel) == KeyCopies::of_heads && has_heads_for_threads(p);
}

Size key_copies_bytes(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    const KernelViews kv = kernel_views(p, plan.views);
    const bool with_values = !packs_values(*plan.kernel);
    switch (key_copies(p, plan.views, *plan.kernel)) {
    case KeyCopies::none:
        return {};
    case KeyCopies::of_heads:
        return HeadCopies::bytes(p.max_threads, p, kv, plan.kernel->kv_dtype, with_values);
    case KeyCopies::of_all:
        return all_bytes(kv, dtype_bytes(plan.kernel->kv_dtype), with_values);
    }
    return {};
}

heed_status copy_all_keys(const heed_plan &plan, const heed_execution &execution, char *memory, KernelCall *call) {
    const KernelViews kv = kernel_views(plan.problem, plan.views);
    const heed_dtype stored = plan.problem.kv_dtype, copied = plan.kernel->kv_dtype;
    const int64_t element = dtype_bytes(copied), pages = kv.k.extent[0], slots = kv.k.extent[1];
    auto *const ranges = reinterpret_cast<KeyRange *>(memory);
    char *const k_rows = memory + round_up(pages * int64_t{sizeof(KeyRange)}, scratch_alignment);
    char *const v_rows = k_rows + round_up(copied_elements(kv.k, element).value * element, scratch_alignment);
    const auto row_copy = [&](const void *from, char *to, const View &rows) {
        return RowCopy{
            static_cast<const char *>(from), to, rows, dense_view(rows, element), dtype_bytes(stored), element,
            copy_row(stored, copied)};
    };
    const RowCopy copies[] = {row_copy(call->k.data, k_rows, kv.k), row_copy(call->v.data, v_rows, kv.v)};
    fill_ranges(call->tasks, pages, ranges);
    const bool with_values = !packs_values(*plan.kernel);
    const KeyRows v = with_values ? KeyRows{v_rows, copies[1].dense} : KeyRows{call->v.data, kv.v};
    set_keys({k_rows, copies[0].dense}, v, copied, call);

    const int64_t chunks = (slots + copied_keys - 1) / copied_keys;
    const auto block = [&](int64_t index, int32_t, char(&)[512]) {
        const int64_t page = index / chunks, first = index % chunks * copied_keys;
        const KeyRange range = ranges[page];
        const auto run = [&](const RowCopy &copy) {
            copy.run(page, std::max<int64_t>(first, range.begin), std::min<int64_t>(first + copied_keys, range.end));
        };
        run(copies[0]);
        if (with_values) run(copies[1]);
        return 0;
    };
    const auto bytes = static_cast<double>(2 * key_copies_bytes(plan).value);
    return run_op("heed_execute", &execution, op_threads(&execution, bytes), pages * chunks, block);
}

}  // namespace heed
