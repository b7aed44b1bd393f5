// From the caller's metadata to the kernel's task table.
#pragma once

#include "kernel.h"
#include "validate.h"

namespace heed {

// Most tasks that any metadata of this problem can make; -1 when their table is beyond 2^31-1 elements.
int64_t max_tasks(const heed_problem &problem, const Kernel &row);

// What the values of one call amount to.
struct Workload {
    int32_t num_tasks = 0;
    double pairs = 0;  // of a query and a key of its sequence, over all heads
};

// Reads each value of the caller's metadata once and checks it: lengths, prefix sums, offsets, active page ids. Then
// writes the tasks of each sequence to `tasks`, in rows of num_task_fields; NULL only checks. On failure what was
// written is meaningless.
heed_status resolve_tasks(const heed_problem &problem, const ProblemViews &views, const Kernel &row,
                          const heed_args &args, int32_t *tasks, Workload *work);

}  // namespace heed
