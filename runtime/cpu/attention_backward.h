// The gradients of one heed_execute, tile by tile: what the steps share. All arithmetic is the kernels'; the order of
// tiles is here.
//
// A tile is a block of queries against a block of keys (the kernel's own sizes). A task is a head of keys of a
// sequence and a range of its key blocks: for each block of keys it makes dk and dv from all rows of all heads of the
// group that see it, and adds to dq. Where heads are few there are several ranges, and as many segments of the rows: in
// step s range r meets segment r + s, so that no two tasks add to the same dq at a time, and dk and dv wait in the
// workspace from step to step. The bits depend on the problem, never on threads.
#pragma once

#include "runtime/kernel_arguments.h"
#include "runtime/ops/op_run.h"
#include "runtime/plan.h"
#include "runtime/sequences.h"

namespace heed {

struct BackwardSequence {
    Sequence place;
    VisibleRange visible;
    int64_t first_row, num_rows;  // of the packed rows of a head: whole blocks
    int64_t first_key_block;      // of all sequences' of a head
};

// Offsets in bytes, each a multiple of 128.
//   sequences    BackwardSequence [batch]
//   lse, delta   f32 [rows]            delta = dout . out. Rows that see no key: 1e30 and 0; rows of a sequence:
//                                      [num_heads][whole blocks of rows]
//   q, dout      f32 [rows][elements]  rows as above, a block in chunks, zeros after the last; of tiles of bf16 each
//                                      block twice, as words and as pairs of rows
//   nonfinite    uint8 [blocks]        a row of the block is not finite
//   dq           f32 [rows][elements]  of tiles of bf16 by blocks [elements][rows of the block]
//                q to dq of the heads of a task alone, for each of max_threads, where that is less memory and tasks
//                have all keys of a head: they stay in the caches of a core
//   keys         f32 [blocks of keys][elements of dk, then of dv]  of several ranges
//   dbias        f32 [elements of bias]  where several tiles meet in an element
//   threads      scratch_bytes for each of max_threads
struct BackwardLayout {
    const OpKernel *tile, *stats, *rows, *store, *bias, *sinks, *repair;  // rows: or words
    int32_t head_dim, head_dim_v;                                         // padded
    int32_t num_ranges, blocks_per_range, blocks_per_segment;
    int64_t rows_of_task;  // packed rows that each thread has; 0: all rows are there once
    bool sums_bias;
    int64_t sequences, q, dout, lse, delta, nonfinite, dq, keys, dbias, threads;
    int64_t scratch_bytes, total;

    // Whether q and dout are words of bf16 (generators/attention/backward_words.h) and dq is by columns.
    bool has_words() const { return tile->dtype == HEED_BF16; }
};

struct BackwardCall {
    const heed_plan &plan;
    const heed_args &args;
    const heed_gradients &gradients;
    const BackwardLayout &layout;
    int32_t thread = 0;  // whose rows of tasks are meant

    template <typename T>
    T *at(int64_t offset) const {
        return reinterpret_cast<T *>(static_cast<char *>(args.workspace) + offset);
    }
    const BackwardSequence &sequence(int64_t b) const { return at<BackwardSequence>(layout.sequences)[b]; }
    // First row of a head in lse and delta, and in q, dout, nonfinite and dq.
    int64_t row_of(const BackwardSequence &s, int64_t h) const {
        return s.first_row * plan.problem.num_heads + h * s.num_rows;
    }
    int64_t packed_row_of(const BackwardSequence &s, int64_t h) const {
        if (layout.rows_of_task == 0) return row_of(s, h);
        const int64_t group = plan.problem.num_heads / plan.problem.num_kv_heads;
        return thread * layout.rows_of_task + h % group * s.num_rows;
    }
};

// logit_grads of a tile, (key, row) of any strides, and where it is.
struct BiasTile {
    KernelBuffer grads;
    int64_t sequence, head, row, key;
};

// 0 or a kernel's negative code with its sentence, as all below.
// Packs the rows of a head: q, dout, lse, delta.
int pack_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head, char (&message)[512]);
// The sums in the caller's dq.
int store_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head, char (&message)[512]);
// The sum of a head over all sequences.
int store_sink(const BackwardCall &call, int32_t head, char (&message)[512]);
void clear_bias(const BackwardCall &call);
int add_bias_tile(const BackwardCall &call, const BiasTile &tile, char (&message)[512]);
int store_bias(const BackwardCall &call, char (&message)[512]);

// For one thread.
int64_t backward_scratch_bytes(const heed_problem &problem, const BackwardLayout &layout);

// A task in a step, in `scratch` of layout.scratch_bytes.
struct KeysTask {
    int32_t kv_head, range, step;
};
int run_backward_keys(const BackwardCall &call, const BackwardSequence &sequence, const KeysTask &task, void *scratch,
                      char (&message)[512]);

}  // namespace heed
