// Rows of bf16 as matrix tiles read them: a word is two bf16, the first in its lower half.
#pragma once

#include <cstdint>

#include "cpu/backward_rows.h"

namespace heed {

// A block of rows of queries, padded to `elements`, twice: [pair of elements][row] words, then
// [chunk][pair of rows][32] words, in which NaN and infinities are zeros.
struct WordBlock {
    uint32_t *words, *pairs;
    int32_t rows;

    // Block of row `row` of blocks of `rows` rows that lie behind each other from `data` on, 4 bytes to an element.
    static WordBlock at(float *data, int64_t row, int32_t rows, int32_t elements) {
        auto *const block = reinterpret_cast<uint32_t *>(data) + row / rows * rows * elements;
        return {block, block + int64_t{rows} * elements / 2, rows};
    }

    // Rows `row` and `row` + 1 of the block, of `count` elements; NULL: zeros. Whether all are finite.
    bool set(int32_t row, const uint16_t *first, const uint16_t *second, int32_t count, int32_t padded) const;

    // Element d of a row, NaN and infinities too.
    uint16_t get(int32_t row, int32_t d) const;
};

// Whether all are finite.
bool all_finite(const uint16_t *row, int32_t count);

inline bool is_special(uint16_t bits) { return (bits & 0x7f80u) == 0x7f80u; }

// Rows [rows][elements] of a block that lies by columns, [elements][rows].
void transpose_block(const float *columns, int32_t rows, int32_t elements, float *to);

}  // namespace heed
