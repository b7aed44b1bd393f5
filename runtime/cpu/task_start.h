// What a thread does before each task of prefill.
#pragma once

#include <optional>

#include "runtime/cpu/head_copies.h"
#include "runtime/key_parts.h"

namespace heed {

// Prefetches the rows of the task in out and those of the next task in q: rows of other heads lie between them, so that
// the prefetchers of the cache do not follow. Kernels that say so (asks_for_rows) ask themselves, between products.
// Left are kernels of matrix tiles that change logits, and the default schedule.
class TaskStart {
public:
    // The parts and the tasks of `call` must outlive it. `copies`: memory for KeyCopies::of_heads, where the call then
    // reads keys; NULL: no copies.
    TaskStart(const heed_plan &plan, const KeyParts &parts, char *copies, KernelCall *call);

    // Before that part of the task's keys, on the thread with that slice. Whether the task has such a part.
    bool run(int32_t task, const TaskBundle &bundle, int32_t part, int32_t slice) const;

private:
    struct Rows {
        const char *data;
        const View &view;
    };

    void fetch(const Rows &rows, const int32_t task[num_task_fields]) const;

    const heed_plan &plan_;
    const KeyParts &parts_;
    int32_t *const tasks_;
    const int32_t num_tasks_;
    const bool kernel_asks_;
    const Rows q_, out_;
    std::optional<HeadCopies> copies_;
};

}  // namespace heed
