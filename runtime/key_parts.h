// Keys in parts. Packed keys and values of a head that leave the L2 cache of a core come from behind it once for a
// bundle of tasks, not for each: the tasks take turns with each part of the keys, their states meanwhile in the cache.
// Which tasks form a bundle, and whether any do, changes no bit: each task goes through the same blocks of keys in the
// same order.
#pragma once

#include "runtime/halide_bridge.h"
#include "runtime/kernel.h"

namespace heed {

// The parts of the keys that a task has.
struct TaskParts {
    int32_t first, last;
};

class KeyParts {
public:
    KeyParts(const heed_problem &problem, const Kernel &kernel);

    // The most tasks of a bundle; 1: tasks take all keys at once.
    int32_t largest_bundle() const { return largest_; }

    int32_t part_keys() const { return part_keys_; }

    // What a slice has for the tasks of a bundle.
    int64_t bytes_of_bundle() const { return largest_ > 1 ? largest_ * kernel_.kept_bytes : 0; }

    // Whether the tasks of this one's sequence take parts.
    bool serve(const int32_t task[num_task_fields]) const;

    TaskParts of(const int32_t task[num_task_fields]) const;

    // Makes `part` the one that the task computes next.
    void set(const TaskParts &parts, int32_t part, int32_t task[num_task_fields]) const;

    // The bundles of loop->num_tasks tasks for so many threads, if there are any. `bundles`: room for one of each task.
    void bundle(const int32_t *tasks, int32_t num_threads, TaskBundle *bundles, TaskLoop *loop) const;

private:
    const Kernel &kernel_;
    const int64_t key_bytes_;  // packed, with its value
    const int32_t part_keys_;
    int32_t largest_ = 1;

    bool leave_cache(int64_t num_keys) const;
};

}  // namespace heed
