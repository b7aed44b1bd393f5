// How work is divided, for speed or by policy: pure functions of their arguments. Kernels: kernel_choice.h.
#pragma once

#include "runtime/kernel_registry.h"

namespace heed {

// How a decode kernel partitions the keys: split s covers [s * split_len, (s + 1) * split_len).
struct Splits {
    int32_t num_splits;
    int64_t split_len;  // a multiple of kv_block; num_splits * split_len >= max_kv_len
};

// From max_kv_len and the rows of a task alone (never from batch, threads or lengths), so that a sequence gives the
// same bits in any batch and on any machine. `requested` > 0 is the caller's num_splits; fewer come back where blocks
// run out.
Splits choose_splits(int32_t max_kv_len, int32_t kv_block, int32_t requested, int64_t task_rows = 1);

// How many heads of keys and values a task of a decode kernel has, and how many blocks of rows of each.
struct TaskShape {
    int32_t heads = 1, row_blocks = 1;
    bool whole_heads = false;  // prefill: the tasks that read a head's keys follow each other

    int32_t blocks() const { return heads * row_blocks; }
};

struct TaskShapeRequest {
    int32_t task_blocks;   // the kernel's limit
    int32_t num_kv_heads;  // of a sequence
    int32_t row_blocks;    // of a head
    bool heads_inside;     // the heads of a token are neighbours in memory
    int64_t parts;         // sequences times splits of the keys
    int32_t num_threads;
};

// All blocks of rows of a head, so that its keys are read once. Several heads where they are neighbours: then keys are
// read in their order in memory (32 heads of 128 floats: 17 GB/s by single heads, 29 GB/s by all, of 30). Less of both
// where threads would lack tasks: results do not depend on the shape.
TaskShape choose_task_shape(const TaskShapeRequest &request);

// At least choose_splits(kv_len, kv_block, 0, any rows).num_splits of every kv_len up to max_kv_len.
int32_t most_splits(int32_t max_kv_len, int32_t kv_block);

// How many of the tasks that read the same keys, `together` of them side by side, a thread takes at once: all, or 1
// where not every thread would get its share.
int32_t tasks_at_once(int32_t num_tasks, int32_t num_threads, int32_t together);

// Whether threads begin with shares of consecutive tasks and then help each other. Those of decoding: the next step
// reads the same keys. In prefill where tasks are so many that the last ones hardly count: neighbours read the same
// pages, and those of a group the same keys (Zen 4, 2 cores, f32: 64 sequences of 16 queries on 128 keys, 32 / 8 heads
// of 64, 13.0 and 9.3 ms, 8 of 512, 12 heads, 36.5 and 35.0).
bool takes_shares(Phase phase, int32_t num_tasks, int32_t num_threads);

constexpr int32_t most_shares = 64;  // of a loop's tasks; further threads begin with others' shares

// Packed keys and values of a head that tasks take at once, not in parts: they stay in the L2 cache of a core, with
// matrix tiles of 2 MiB. Measured on a Xeon with AMX, one thread, 512 queries, 8 / 4 heads of 128, in parts and at
// once: 2176 keys 4.1 and 3.9 ms, 2432 4.5 and 4.4, 2816 5.15 and 5.6; 8 / 2 heads, 16384 keys, 28 and 51.
constexpr int64_t most_whole_bytes = 5 << 18;

// Keys of a part: a multiple of kv_block, 3/8 of the cache.
int32_t choose_part_keys(int64_t key_bytes, int32_t kv_block);

// How many tasks take turns with the parts of their keys, with so many bytes of state each, in all another 3/8; 1: none
// do. Each thread has some bundles.
int32_t choose_bundle(int64_t num_tasks, int32_t num_threads, int64_t state_bytes);

// Threads that pay for a call of this many floating-point operations and bytes of keys and values, 1..limit.
int32_t choose_threads(double flops, double bytes, int32_t limit);

}  // namespace heed
