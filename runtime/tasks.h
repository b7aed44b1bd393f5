// From the caller's metadata to the kernel's task table.
#pragma once

#include "runtime/heuristics.h"
#include "runtime/kernel.h"
#include "runtime/validate.h"

namespace heed {

// Whether all heads read the same elements of mask and bias.
bool heads_share_masks(const heed_problem &problem, const ProblemViews &views);

// Whether the heads of a key are neighbours in memory.
bool heads_are_inside(const ProblemViews &views);

// The shape of a decode kernel's tasks, in a plan with so many splits of the keys.
TaskShape task_shape(const heed_problem &problem, const ProblemViews &views, const Kernel &kernel, int32_t num_splits);

// Most tasks that any metadata of this problem can make; -1 when their table is beyond 2^31-1 elements.
int64_t max_tasks(const heed_problem &problem, const Kernel &kernel, const TaskShape &shape = {});

// Most blocks of keys that a kernel packs for them, as max_tasks(); 0 for a kernel that packs none.
int64_t max_key_blocks(const heed_problem &problem, const Kernel &kernel);

// Most lines of swept_tasks, as max_tasks(); 1 without mask and bias, 0 for a kernel that does not sweep.
int64_t max_swept_tasks(const heed_problem &problem, const ProblemViews &views, const Kernel &kernel);

// The keys of the task's sequence that some query of it sees, as far as positions tell.
struct KeyRange {
    int32_t begin, end;
};
KeyRange seen_keys(const int32_t task[num_task_fields]);

// The keys that all rows in [first_row, end_row) of the task's sequence see, as far as positions tell; may be none.
KeyRange keys_of_all(const int32_t task[num_task_fields], int64_t first_row, int64_t end_row);

// The tables that execute makes for a kernel; NULL: not asked for.
struct TaskTables {
    int32_t *tasks = nullptr, *key_blocks = nullptr, *swept_tasks = nullptr;
};

// What the values of one call amount to.
struct Workload {
    int32_t num_tasks = 0, num_key_blocks = 0, num_swept = 0;
    double pairs = 0;  // of a query and a key of its sequence, over all heads
    double keys = 0;   // over all heads of keys
};

// Reads each value of the caller's metadata once and checks it: lengths, prefix sums, offsets, active page ids. Then
// writes the tasks of each sequence, in rows of num_task_fields; without a table of them it only checks. On failure
// what was written is meaningless. A kernel that packs keys needs key_blocks too, in rows of num_key_block_fields.
heed_status resolve_tasks(const heed_problem &problem, const ProblemViews &views, const Kernel &kernel,
                          const heed_args &args, const TaskTables &tables, Workload *work, const TaskShape &shape = {});

}  // namespace heed
