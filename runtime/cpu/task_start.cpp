#include "runtime/cpu/task_start.h"

#include <algorithm>

#include "runtime/cpu/fetch_rows.h"
#include "runtime/plan.h"
#include "runtime/status.h"

namespace heed {

TaskStart::TaskStart(const heed_plan &plan, const KeyParts &parts, char *copies, KernelCall *call)
    : plan_(plan), parts_(parts), tasks_(static_cast<int32_t *>(call->tasks.data)), num_tasks_(call->tasks.extent[1]),
      kernel_asks_(plan.kernel->asks_for_rows), q_{static_cast<const char *>(call->q.data), plan.views.q},
      out_{static_cast<const char *>(call->out.data), plan.views.out} {
    if (copies != nullptr) copies_.emplace(plan, copies, call);
}

void TaskStart::fetch(const Rows &rows, const int32_t task[num_task_fields]) const {
    const View &view = rows.view;
    const int64_t element = dtype_bytes(plan_.problem.dtype), row_bytes = view.extent[3] * element;
    const int64_t first = task[task_first_row],
                  end = std::min<int64_t>(first + plan_.kernel->row_block, task[task_q_len]);
    const int64_t head = task[task_q_batch] * view.stride[0] + task[task_head] * view.stride[2];
    const char *const at = rows.data + (head + (task[task_first_q] + first) * view.stride[1]) * element;
    fetch_rows(at, end - first, row_bytes, view.stride[1] * element);
}

bool TaskStart::run(int32_t task, const TaskBundle &bundle, int32_t part, int32_t slice) const {
    int32_t *const fields = tasks_ + int64_t{task} * num_task_fields;
    const bool whole = bundle.end_part - bundle.first_part == 1;
    const TaskParts parts = whole ? TaskParts{part, part} : parts_.of(fields);
    if (part < parts.first || part > parts.last) return false;
    if (!whole) parts_.set(parts, part, fields);
    if (!kernel_asks_) {
        if (part == parts.last) fetch(out_, fields);
        if (part == parts.first && task + 1 < num_tasks_) fetch(q_, fields + num_task_fields);
    }
    if (copies_) copies_->make(fields, slice);
    return true;
}

}  // namespace heed
