// The gradients of one heed_execute, tile by tile: what the steps share.
//
// A tile is a block of query rows against a block of keys (the row's own sizes). A task is a head of keys of a sequence
// and a range of its key blocks: for each block of keys it makes dk and dv from all rows of all heads of the group that
// see it, and adds to dq. Ranges have a dq of their own, added up in order behind the last task: the bits depend on the
// problem, never on threads.
#pragma once

#include "ops/op_run.h"
#include "plan.h"
#include "sequences.h"

namespace heed {

struct BackwardSequence {
    Sequence place;
    VisibleRange visible;
    int64_t first_row, num_rows;  // of the packed rows of a head: whole blocks
};

// Offsets in bytes, each a multiple of 128.
//   sequences    BackwardSequence [batch]
//   q, dout      f32 [rows][elements]  rows of a sequence: [num_heads][whole blocks of rows, in chunks], zeros behind
//                                      the last; of tiles of bf16 each block twice, as words and as pairs of rows
//   lse, delta   f32 [rows]            delta = dout . out. Rows that see no key: 1e30 and 0
//   special      uint8 [blocks]        a row of the block is not finite
//   dq           f32 [num_ranges][rows][elements]  of tiles of bf16 by blocks [elements][rows of the block]
//   dsink        f64 [batch][num_heads]
//   dbias        f32 [elements of bias]  where several tiles meet in an element
//   threads      scratch_bytes for each of max_threads
struct BackwardLayout {
    const OpKernel *tile;
    int32_t head_dim, head_dim_v;  // padded
    int64_t num_rows;              // of all sequences and heads
    int32_t num_ranges, blocks_per_range;
    bool sums_bias;
    int64_t sequences, q, dout, lse, delta, special, dq, dsink, dbias, threads;
    int64_t scratch_bytes, total;

    // Whether q and dout are words of bf16 (backward_words.h) and dq lies by columns.
    bool has_words() const { return tile->dtype == HEED_BF16; }
};

struct BackwardCall {
    const heed_plan &plan;
    const heed_args &args;
    const heed_gradients &gradients;
    const BackwardLayout &layout;

    template <typename T>
    T *at(int64_t offset) const {
        return reinterpret_cast<T *>(static_cast<char *>(args.workspace) + offset);
    }
    const BackwardSequence &sequence(int64_t b) const { return at<BackwardSequence>(layout.sequences)[b]; }
    // First packed row of a head.
    int64_t row_of(const BackwardSequence &s, int64_t h) const {
        return s.first_row * plan.problem.num_heads + h * s.num_rows;
    }
};

// Packs the rows of a head: q, dout, lse, delta and its share of dsink.
void pack_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head);
// The sum over ranges, in the caller's dq.
void store_queries(const BackwardCall &call, const BackwardSequence &sequence, int32_t head);
void store_sinks(const BackwardCall &call);
void clear_bias(const BackwardCall &call);
void store_bias(const BackwardCall &call);

// Of one thread.
int64_t backward_scratch_bytes(const heed_problem &problem, const BackwardLayout &layout);

// A range of key blocks of a sequence, in `scratch` of layout.scratch_bytes. 0 or a kernel's negative code.
int run_backward_keys(const BackwardCall &call, const BackwardSequence &sequence, int32_t kv_head, int32_t range,
                      void *scratch, char (&message)[512]);

}  // namespace heed
