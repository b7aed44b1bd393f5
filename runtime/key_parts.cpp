#include "runtime/key_parts.h"

#include <algorithm>

#include "runtime/heuristics.h"
#include "runtime/kernel_registry.h"
#include "runtime/tasks.h"

namespace heed {

KeyParts::KeyParts(const heed_problem &p, const Kernel &kernel)
    : kernel_(kernel), key_bytes_(packed_block_bytes(kernel, p.head_dim, p.head_dim_v) / std::max(kernel.kv_block, 1)),
      part_keys_(choose_part_keys(key_bytes_, kernel.kv_block)) {
    if (kernel.kept_bytes == 0 || !leave_cache(p.max_kv_len)) return;
    largest_ = choose_bundle(max_tasks(p, kernel), p.max_threads, kernel.kept_bytes);
}

bool KeyParts::leave_cache(int64_t num_keys) const { return num_keys * key_bytes_ > most_whole_bytes; }

bool KeyParts::serve(const int32_t task[num_task_fields]) const {
    const int64_t of_row = int64_t{task[task_visible_end]} - task[task_visible_begin];
    return largest_ > 1 && leave_cache(std::min<int64_t>(task[task_kv_len], of_row));
}

TaskParts KeyParts::of(const int32_t task[num_task_fields]) const {
    const int64_t first_row = task[task_first_row],
                  end_row = std::min<int64_t>(first_row + kernel_.row_block, task[task_q_len]);
    const KeyRange keys = keys_of_all(task, first_row, end_row);
    return {keys.begin / part_keys_, std::max(keys.end - 1, keys.begin) / part_keys_};
}

void KeyParts::set(const TaskParts &parts, int32_t part, int32_t task[num_task_fields]) const {
    task[task_part_begin] = part == parts.first ? 0 : part * part_keys_;
    task[task_part_end] = part == parts.last ? no_part_end : (part + 1) * part_keys_;
}

void KeyParts::bundle(const int32_t *tasks, int32_t num_threads, TaskBundle *bundles, TaskLoop *loop) const {
    if (largest_ == 1) return;
    loop->kept_bytes = kernel_.kept_bytes;
    loop->largest_bundle = largest_;
    const int32_t most = std::min(choose_bundle(loop->num_tasks, num_threads, kernel_.kept_bytes), largest_);
    if (most == 1) return;
    loop->bundles = bundles;
    const int32_t *before = nullptr;  // the task before, if others may join it
    for (int32_t n = 0; n < loop->num_tasks; n++) {
        const int32_t *const task = tasks + int64_t{n} * num_task_fields;
        const bool takes_parts = serve(task);
        const TaskParts parts = takes_parts ? of(task) : TaskParts{0, 0};
        const auto same = [&](int field) { return before[field] == task[field]; };
        const bool joins = takes_parts && before != nullptr && same(task_sequence) && same(task_kv_head);
        TaskBundle *const last = bundles + loop->num_bundles - 1;
        if (joins && last->end - last->first < most) {
            *last = {last->first, n + 1, std::min(last->first_part, parts.first),
                     std::max(last->end_part, parts.last + 1)};
        } else {
            bundles[loop->num_bundles++] = {n, n + 1, parts.first, parts.last + 1};
        }
        before = takes_parts ? task : nullptr;
    }
}

}  // namespace heed
