// Rows of tensors as rows of floats in chunks of 32 elements, zeros behind the last, and back.
#pragma once

#include <cstdint>

#include "generators/contract/fields.h"
#include "heed/heed.h"

namespace heed {

// Of a block of rows, [chunks][rows of the block][backward_chunk].
struct ChunkedRow {
    float *data;
    int64_t stride;  // floats from one chunk to the next

    // Row `row` of blocks of `block` rows, padded to `elements`, that lie behind each other from `rows` on.
    static ChunkedRow at(float *rows, int64_t row, int32_t block, int32_t elements) {
        return {rows + row / block * block * elements + row % block * backward_chunk, int64_t{block} * backward_chunk};
    }
};

// Whether all of the `count` elements are finite.
bool load_row(const void *from, heed_dtype dtype, int32_t count, ChunkedRow to);

void clear_row(ChunkedRow row, int32_t count);

// Each element times `factor`.
void store_row(ChunkedRow from, float factor, heed_dtype dtype, int32_t count, void *to);

}  // namespace heed
