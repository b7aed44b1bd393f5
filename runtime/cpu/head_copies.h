// KeyCopies::of_heads: each thread has a place for the keys of one head, and for its values unless the kernel packs
// them; in the type that the kernel reads.
#pragma once

#include "runtime/cpu/copy_rows.h"
#include "runtime/kernel_call.h"
#include "runtime/tasks.h"

namespace heed {

class HeadCopies {
public:
    // What the places of so many threads take, with copies of that type.
    static Size bytes(int32_t num_threads, const heed_problem &problem, const KernelViews &kv, heed_dtype copied,
                      bool with_values);

    // In `memory`, of bytes() for max_threads. The plan must outlive it. Lets the call read there.
    HeadCopies(const heed_plan &plan, char *memory, KernelCall *call);

    // Copies what a task sees to the place of the thread with that slice, and lets the task read it there. Once for
    // each task; threads with different slices may at the same time.
    void make(int32_t task[num_task_fields], int32_t slice) const;

private:
    // Whose rows a place has; it begins with that.
    struct Held;
    struct Rows {
        const char *from;
        char *to;  // in the first place
        View source, copy;
    };

    Held *held(int32_t slice) const;
    // Keys [first, end) that follow each other in memory.
    struct Run {
        int32_t first, end;
        const char *from;
    };

    // The one that begins with `key`, or that of all keys, where they are not in pages.
    Run run(const Rows &rows, const Held &of, const KeyRange &keys, int32_t key) const;
    void copy(const Rows &rows, const Held &of, const KeyRange &keys, int32_t slice) const;

    const heed_problem &problem_;
    const int32_t *page_table_;  // NULL: keys are not in pages
    char *memory_;
    bool with_values_;
    CopyRow copy_row_;
    int64_t element_, copied_element_, place_bytes_;
    Rows k_, v_;
};

}  // namespace heed
