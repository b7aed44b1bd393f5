// Rows of the caller's tensors as operands of tiles, and sums of tiles as rows of the caller's: what the kernels
// attention_backward_rows, _words and _store are called with.
#pragma once

#include "runtime/cpu/attention_backward.h"

namespace heed {

// Rows [first, first + count) of a head: an element's place in the tensor, and how far apart rows are.
struct TensorRows {
    void *data;  // of the first row
    int64_t row_stride;
    int32_t elements, count;

    KernelBuffer buffer(heed_dtype dtype) const {
        return {data, dtype, 2, {elements, count}, {1, count > 1 ? narrow(row_stride) : elements}};
    }
};

// [chunks][rows][32] floats.
KernelBuffer chunked_buffer(float *data, int32_t elements, int32_t rows);

// Rows as floats in chunks and, unless `lanes` has no data, transposed in chunks of rows; `chunks` may have no data
// too. lse: of each row, NULL: of keys. *finite: whether all are; false stays.
int load_chunks(const BackwardCall &call, const TensorRows &rows, const float *lse, KernelBuffer chunks,
                KernelBuffer lanes, bool *finite, char (&message)[512]);

// Rows of bf16 in words of two: those of queries as tiles read them, or those of keys.
struct QueryWords {
    uint32_t *words, *pairs;

    // A block of `rows` rows padded to `elements` of which 4 bytes are each element's.
    static QueryWords at(float *block, int32_t rows, int32_t elements) {
        auto *const words = reinterpret_cast<uint32_t *>(block);
        return {words, words + int64_t{rows} * elements / 2};
    }
};
int load_query_words(const BackwardCall &call, const TensorRows &rows, const float *lse, const QueryWords &to,
                     int32_t padded, bool *finite, char (&message)[512]);
// columns may be NULL.
int load_key_words(const BackwardCall &call, const TensorRows &rows, uint16_t *row_words, uint16_t *columns,
                   int32_t padded, bool *finite, char (&message)[512]);

// rows = factor * the first of `sums` (c, row, chunk).
int store_rows(const OpKernel &store, const KernelBuffer &sums, float factor, heed_dtype dtype, const TensorRows &rows,
               char (&message)[512]);

}  // namespace heed
