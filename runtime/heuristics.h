// Every choice that the runtime makes for speed or by policy: pure functions of their arguments.
#pragma once

#include <string>

#include "kernel_registry.h"

namespace heed {

// Query rows per sequence up to which decode rows are preferred: they read K and V once for all rows of a group and
// split the keys over threads; prefill rows make tiles of dozens of rows per head, up to here over nine tenths padding.
constexpr int32_t decode_max_q_len = 4;

// The phase whose rows are preferred.
Phase preferred_phase(const RowRequest &request);

// A row and the reason in words, or no row (NULL) and a status with its sentence.
struct RowChoice {
    const Kernel *row = nullptr;
    heed_status status = HEED_OK;
    std::string reason;
    std::string candidates;  // one line per row of the request's device: taken, or why not; the others are counted
};

// The best row that can serve the request: preferred phase, then exact head dims, then ISA, storage, group,
// fewest extra features, fewest reads of the keys, fewest rows of work, table order. `forced` is a row's name or NULL:
// that row or none.
RowChoice choose_row(const KernelTable &table, const RowRequest &request, uint32_t isas, const char *forced);

// How a decode row partitions the keys: split s covers [s * split_len, (s + 1) * split_len).
struct Splits {
    int32_t num_splits;
    int64_t split_len;  // a multiple of kv_block; num_splits * split_len >= max_kv_len
};

// From max_kv_len alone (never from batch, threads or lengths), so that a sequence gives the same bits in any batch and
// on any machine. `requested` > 0 is the caller's num_splits; fewer come back where blocks run out.
Splits choose_splits(int32_t max_kv_len, int32_t kv_block, int32_t requested);

// At least choose_splits(kv_len, kv_block, 0).num_splits of every kv_len up to max_kv_len.
int32_t most_splits(int32_t max_kv_len, int32_t kv_block);

// Threads that pay for a call of this many floating-point operations, 1..limit.
int32_t choose_threads(double flops, int32_t limit);

}  // namespace heed
