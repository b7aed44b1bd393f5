// Rows of heads that go from tokens to tokens: launches of the CUDA kernels rope, kv_append and kv_copy.
#pragma once

#include "runtime/cuda/launches.h"
#include "runtime/ops/rotation.h"

namespace heed::cuda {

// What all segments of an operation share.
struct TokenMove {
    const OpKernel *kernel;
    int32_t num_heads, row_length;       // elements of `kernel`'s dtype
    const Rotation *rotation = nullptr;  // NULL: rows are copied
};

// A run of neighbouring tokens.
struct TokenSegment {
    Rows from, to;
    float *scales = nullptr;  // kv_append: of the first token, packed
    int32_t tokens;
    const int32_t *positions = nullptr;  // rows of the tables, on the host, each read once and clamped; NULL: rows
    int64_t table_position = 0;          // from this one on
};

// Collects segments, all of one operation with the same strides, and launches them together: 32 at a time.
class TokenMoves {
public:
    TokenMoves(const TokenMove &move, Launches &launches) : move_(move), launches_(launches) {}

    heed_status add(const TokenSegment &segment);
    heed_status flush();

private:
    // `tokens` tokens from number `first` of the segment on, with rows of the tables from `table_position` on.
    heed_status add_run(const TokenSegment &segment, int64_t first, int64_t tokens, int64_t table_position);
    bool is_wide() const;

    const TokenMove move_;
    Launches &launches_;
    Rows from_ = {}, to_ = {};  // of the last segment
    MoveTokensArguments arguments_;
    uint64_t from_addresses_ = 0, to_addresses_ = 0;  // all of them, or-ed
    int32_t count_ = 0, max_tokens_ = 0;
};

}  // namespace heed::cuda
