#include "runtime/cpu/head_copies.h"

#include <algorithm>

#include "runtime/cpu/key_copies.h"
#include "runtime/key_place.h"
#include "runtime/plan.h"
#include "runtime/scratch.h"
#include "runtime/status.h"

namespace heed {
namespace {

// So much of the rows is asked for before it is copied: neighbours in other layouts are out of reach of the
// prefetchers. Zen 5, from memory, one thread: rows of 512 bytes are copied at 15 to 17 GB/s with 2 to 8 KiB; of 256 at
// 14, 18, 21 GB/s with 1, 4 and 8 KiB; of 128 at 12, 14, 19 GB/s with 1, 2 and 4 KiB.
constexpr size_t bytes_ahead = 4096;

int64_t longest_sequence(const heed_problem &p) {
    if (p.kv_storage != HEED_KV_PAGED) return p.max_kv_len;
    return std::min<int64_t>(p.max_kv_len, int64_t{p.max_pages_per_seq} * p.page_size);
}

int64_t rows_bytes(const heed_problem &p, const View &rows, int64_t element) {
    return round_up(longest_sequence(p) * row_pitch(rows, element) * element, scratch_alignment);
}

// What it holds, k, v.
int64_t place_bytes(const heed_problem &p, const KernelViews &kv, int64_t element, bool with_values) {
    return scratch_alignment + rows_bytes(p, kv.k, element) + (with_values ? rows_bytes(p, kv.v, element) : 0);
}

// A page is the place of a thread.
View place_view(const heed_problem &p, int64_t bytes_of_place, const View &rows, int64_t element) {
    View view = rows;
    view.extent[0] = p.max_threads;
    view.extent[1] = longest_sequence(p);
    view.stride[0] = bytes_of_place / element;
    view.stride[1] = row_pitch(rows, element);
    view.stride[2] = 0;
    return view;
}

}  // namespace

// `page`: of keys in pages their sequence.
struct HeadCopies::Held {
    int32_t head = -1, page = 0, first_key = 0;
    KeyRange keys = {0, 0};

    bool same_head(const Held &other) const {
        return head == other.head && page == other.page && first_key == other.first_key;
    }
};

Size HeadCopies::bytes(int32_t num_threads, const heed_problem &p, const KernelViews &kv, heed_dtype copied,
                       bool with_values) {
    return Size{num_threads} * place_bytes(p, kv, dtype_bytes(copied), with_values);
}

HeadCopies::HeadCopies(const heed_plan &plan, char *memory, KernelCall *call)
    : problem_(plan.problem),
      page_table_(call->page_size > 0 ? static_cast<const int32_t *>(call->page_table.data) : nullptr), memory_(memory),
      with_values_(!packs_values(*plan.kernel)), copy_row_(copy_row(plan.problem.kv_dtype, plan.kernel->kv_dtype)),
      element_(dtype_bytes(plan.problem.kv_dtype)), copied_element_(dtype_bytes(plan.kernel->kv_dtype)) {
    const heed_problem &p = plan.problem;
    const KernelViews kv = kernel_views(p, plan.views);
    place_bytes_ = place_bytes(p, kv, copied_element_, with_values_);
    char *const k_rows = memory + scratch_alignment, *const v_rows = k_rows + rows_bytes(p, kv.k, copied_element_);
    k_ = {static_cast<const char *>(call->k.data), k_rows, kv.k, place_view(p, place_bytes_, kv.k, copied_element_)};
    v_ = {static_cast<const char *>(call->v.data), v_rows, kv.v, place_view(p, place_bytes_, kv.v, copied_element_)};
    const KeyRows v = with_values_ ? KeyRows{v_.to, v_.copy} : KeyRows{call->v.data, kv.v};
    set_keys({k_.to, k_.copy}, v, plan.kernel->kv_dtype, call);
    for (int32_t slice = 0; slice < p.max_threads; slice++) *held(slice) = {};
}

HeadCopies::Held *HeadCopies::held(int32_t slice) const {
    return reinterpret_cast<Held *>(memory_ + slice * place_bytes_);
}

HeadCopies::Run HeadCopies::run(const Rows &rows, const Held &of, const KeyRange &keys, int32_t key) const {
    const View &source = rows.source;
    Run run = {keys.begin, keys.end, nullptr};
    KeyPlace place = {of.page, int64_t{of.first_key} + keys.begin};
    if (page_table_ != nullptr) {
        run = {key,
               static_cast<int32_t>(
                   std::min<int64_t>(keys.end, (int64_t{key} / problem_.page_size + 1) * problem_.page_size)),
               nullptr};
        place = place_in_pages(problem_, page_table_, of.page, key);
    }
    run.from = rows.from +
               (place.page * source.stride[0] + place.slot * source.stride[1] + of.head * source.stride[2]) * element_;
    return run;
}

void HeadCopies::copy(const Rows &rows, const Held &of, const KeyRange &keys, int32_t slice) const {
    if (keys.begin >= keys.end) return;
    const auto row_bytes = static_cast<size_t>(rows.source.extent[3] * element_);
    const auto rows_ahead = static_cast<int32_t>(std::max<size_t>(bytes_ahead / row_bytes, 1));
    const int64_t from_step = rows.source.stride[1] * element_, to_step = rows.copy.stride[1] * copied_element_;
    char *const to = rows.to + slice * place_bytes_;
    Run here = run(rows, of, keys, keys.begin), ahead = here;
    for (int32_t key = keys.begin; key < keys.end; key++) {
        const int32_t asked = std::min(key + rows_ahead, keys.end - 1);
        if (asked >= ahead.end) ahead = run(rows, of, keys, asked);
        if (key >= here.end) here = run(rows, of, keys, key);
        const char *const line = ahead.from + (asked - ahead.first) * from_step;
        for (size_t byte = 0; byte < row_bytes; byte += 64) __builtin_prefetch(line + byte);
        copy_row_(here.from + (key - here.first) * from_step, to + key * to_step, rows.source.extent[3]);
    }
}

void HeadCopies::make(int32_t task[num_task_fields], int32_t slice) const {
    const KeyRange seen = seen_keys(task);
    Held &has = *held(slice), wanted;
    wanted.head = task[task_kv_head];
    wanted.page = page_table_ == nullptr ? task[task_kv_batch] : task[task_sequence];
    wanted.first_key = task[task_first_key];
    wanted.keys = {seen.begin, seen.begin};
    if (!has.same_head(wanted) || seen.begin > has.keys.end || seen.end < has.keys.begin) has = wanted;
    for (const KeyRange &keys : {KeyRange{seen.begin, has.keys.begin}, KeyRange{has.keys.end, seen.end}}) {
        copy(k_, has, keys, slice);
        if (with_values_) copy(v_, has, keys, slice);
    }
    has.keys = {std::min(seen.begin, has.keys.begin), std::max(seen.end, has.keys.end)};
    task[task_kv_batch] = slice;
    task[task_first_key] = 0;
}

}  // namespace heed
