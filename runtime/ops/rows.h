// Blocks of rows: [token][head][elements], elements innermost and dense.
#pragma once

#include <cstdint>

#include "runtime/halide_bridge.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {

// Strides in bytes.
struct Rows {
    char *data;
    int64_t token_stride, head_stride;

    char *at(int64_t token, int64_t head) const { return data + token * token_stride + head * head_stride; }
};

// The rows of tensor `data` from [outer][token] on. View dimensions are [outer, token, head, element].
inline Rows rows_of(const void *data, const View &view, heed_dtype dtype, int64_t outer, int64_t token) {
    const int64_t bytes = dtype_bytes(dtype), offset = outer * view.stride[0] + token * view.stride[1];
    return {static_cast<char *>(const_cast<void *>(data)) + offset * bytes, view.stride[1] * bytes,
            view.stride[2] * bytes};
}

void copy_rows(const Rows &from, const Rows &to, int32_t num_tokens, int32_t num_heads, int64_t row_bytes);

// What a block moves: half an L1 cache.
constexpr int64_t block_bytes = 16 << 10;

// Tokens of a block, at least 1.
int32_t tokens_per_block(int64_t token_bytes);

// Calls run(first_token, num_tokens, first_head, num_heads) -> int for parts of a block such that every stride between
// elements of a part fits a kernel's 32 bits; all tokens and heads in one part except for huge strides. Stops at the
// first code that is not 0.
template <typename Run>
int in_kernel_strides(const Rows &a, const Rows &b, int32_t num_tokens, int32_t num_heads, const Run &run) {
    constexpr int64_t limit = INT32_MAX;
    const int32_t tokens = a.token_stride > limit || b.token_stride > limit ? 1 : num_tokens;
    const int32_t heads = a.head_stride > limit || b.head_stride > limit ? 1 : num_heads;
    for (int32_t t = 0; t < num_tokens; t += tokens) {
        for (int32_t h = 0; h < num_heads; h += heads) {
            if (const int code = run(t, tokens, h, heads)) return code;
        }
    }
    return 0;
}

}  // namespace heed
