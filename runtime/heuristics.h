// Every choice that the runtime makes for speed or by policy: pure functions of their arguments.
#pragma once

#include <string>

#include "runtime/kernel_registry.h"

namespace heed {

// Queries per sequence up to which a decode kernel is preferred: it reads K and V once for all rows of a group and
// splits the keys over threads; prefill kernels compute whole vectors of rows per head. 11 of AVX-512's kernels for
// some head dims where prefill computes in floats too (8 heads of 64, Zen 4, 2 cores, decode and prefill: 8 queries on
// 256 keys take 65 and 92 us, 12 57 and 51, 16 75 and 52), 16 for a group whose keys are no longer in the caches when
// its next head reads them (32 / 8 heads of 128, 16 queries: on 1024 keys 2.1 and 1.5 ms, on 8192 17 and 21). 8 of
// AVX2's from 256 keys on (Zen 3, 2 cores, decode and prefill in f32: 8 queries on 1024 keys, 8 heads of 64, 359 and
// 422 us, 11 queries 544 and 475; 5 on 100 keys 92 and 77; 32 / 8 heads of 128, 8 queries on 4096 keys, 18 and 41 ms).
// Else 4. With matrix tiles, which prefill fills by 32 queries of a head and kernels for large groups by those of all
// heads, 32 of one head, 16 of four, 9 of 32 (Xeon with AMX, 2 cores, decode and prefill in bf16, heads of 128: 32 / 8
// heads, 8 queries on 4096 keys 1.0 and 1.9 ms, 16 1.7 and 1.9, 32 3.2 and 1.9; 32 / 32 heads, 32 queries 6.1 and 10.3
// ms; 32 / 1 heads, 4 queries 0.4 and 1.2 ms, 16 1.5 and 1.1); 8 with tiles of any head dim (16 heads of 256, 16
// queries on 512 keys 0.65 and 0.62 ms). Beside prefill in dot products of bf16 (Zen 5, 2 cores, heads of 128, through
// Python, us): by elements as lanes 8, 11 of one head from 1024 keys on (32 heads, 8 queries on 4096 keys 2450, prefill
// 5540; on 64 50 and 55); by rows as lanes 24, 48 of one head from 1024 keys on, of short groups 48 rows (32 / 8 heads,
// 8 queries on 1024 keys 182 and 485, 24 505 and 638, 32 665 and 651; on 64 keys 12 queries 37 and 48, 32 86 and 64; 32
// heads, 48 queries on 4096 keys 6135 and 6920). Rows of floats as lanes: half a block of them (24 queries with
// AVX-512, 12 with AVX2), of one head from 1024 keys on a block, below 256 keys a quarter, of one head 4 (Zen 5, 2
// cores, heads of 128, through Python, us: 32 / 8 heads, 8 queries on 1024 keys 359, by elements 602, prefill 1018, 24
// 1002 and 1351, 32 1357 and 1353; on 64 keys 12 queries 59 and 78, 16 86 and 80; 8 heads, 48 queries on 4096 keys 1993
// and 2458; AVX2, 32 / 8 heads, 12 queries on 2048 keys 2146 and 2999, 16 3076 and 3006).
int32_t most_decoded_queries(const Kernel &kernel, const KernelRequest &request);

// The most of all requests whose groups have so many heads.
int32_t most_decoded_queries(const Kernel &kernel, int32_t group_size);

// Rows that share the keys of a head, from which on lanes of rows pay (Zen 4, 2 cores, 4096 keys of 128, 8, 16 and 32
// rows by lanes of elements and of rows: f32 0.51, 0.51, 0.50 and 0.69, 0.37, 0.36 ms, bf16 0.43, 0.38, 0.38 and 0.49,
// 0.21, 0.20).
constexpr int32_t least_rows_of_large_groups = 16;

// Fewer rows never get the kernel while another one serves them: half as many of matrix tiles, three quarters of dot
// products and of floats.
int32_t least_rows(const Kernel &kernel);

// The phase whose kernels are preferred for the head dims of this one.
Phase preferred_phase(const Kernel &kernel, const KernelRequest &request);

// A kernel and the reason in words, or no kernel (NULL) and a status with its sentence.
struct KernelChoice {
    const Kernel *kernel = nullptr;
    heed_status status = HEED_OK;
    std::string reason;
    std::string candidates;  // one line per kernel of the request's device: taken, or why not; the others are counted
};

// The best kernel that can serve the request, or NULL: preferred phase, then exact head dims, then ISA, storage, group,
// fewest extra features, fewest reads of the keys, fewest rows of work, table order. Allocates nothing.
const Kernel *best_kernel(const KernelTable &table, const KernelRequest &request, uint32_t targets);

// Whether the kernel, the best one for the request, is a decode kernel before all prefill kernels. Then no number of
// keys changes the choice: kernels that pack all of them first, and refuse too many, are for prefill.
bool is_preferred_decoder(const Kernel &kernel, const KernelRequest &request);

// Whether such a kernel is the best one for both: they differ at most in lengths of keys, and not in what the choice
// makes of these.
bool decode_alike(const KernelRequest &a, const KernelRequest &b);

// The same with all the words. `forced` is a kernel's name, NULL or "": that kernel or none.
KernelChoice choose_kernel(const KernelTable &table, const KernelRequest &request, uint32_t targets,
                           const char *forced);

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
