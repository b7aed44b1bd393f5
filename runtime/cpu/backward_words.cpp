#include "cpu/backward_words.h"

#include <algorithm>
#include <cstring>

namespace heed {
namespace {

uint16_t number(uint16_t bits) { return is_special(bits) ? uint16_t{0} : bits; }

uint32_t word(uint16_t low, uint16_t high) { return uint32_t{low} | uint32_t{high} << 16; }

}  // namespace

bool all_finite(const uint16_t *row, int32_t count) {
    uint16_t largest = 0;
    for (int32_t d = 0; d < count; d++) largest = std::max(largest, static_cast<uint16_t>(row[d] & 0x7fffu));
    return largest < 0x7f80u;
}

bool WordBlock::set(int32_t row, const uint16_t *first, const uint16_t *second, int32_t count, int32_t padded) const {
    constexpr int32_t chunk = backward_chunk;
    bool finite = true;
    for (const uint16_t *one : {first, second}) finite = finite && (one == nullptr || all_finite(one, count));
    for (int32_t d = 0; d < padded; d += chunk) {
        uint16_t a[chunk] = {}, b[chunk] = {};
        const auto bytes = sizeof(uint16_t) * static_cast<size_t>(std::clamp(count - d, 0, chunk));
        if (first != nullptr) std::memcpy(a, first + d, bytes);
        if (second != nullptr) std::memcpy(b, second + d, bytes);
        uint32_t *const to = words + int64_t{d / 2} * rows + row;
        for (int64_t c = 0; c < chunk / 2; c++) {
            to[c * rows] = word(a[2 * c], a[2 * c + 1]);
            to[c * rows + 1] = word(b[2 * c], b[2 * c + 1]);
        }
        if (!finite) {
            for (int32_t c = 0; c < chunk; c++) {
                a[c] = number(a[c]);
                b[c] = number(b[c]);
            }
        }
        uint32_t *const pair = pairs + (int64_t{d / chunk} * (rows / 2) + row / 2) * chunk;
        for (int32_t c = 0; c < chunk; c++) pair[c] = word(a[c], b[c]);
    }
    return finite;
}

uint16_t WordBlock::get(int32_t row, int32_t d) const {
    const uint32_t both = words[d / 2 * rows + row];
    return static_cast<uint16_t>(d % 2 == 0 ? both & 0xffffu : both >> 16);
}

void transpose_block(const float *columns, int32_t rows, int32_t elements, float *to) {
    constexpr int32_t edge = 16;
    for (int32_t row = 0; row < rows; row += edge) {
        for (int32_t d = 0; d < elements; d++) {
            for (int32_t i = 0; i < edge; i++) to[(row + i) * elements + d] = columns[d * rows + row + i];
        }
    }
}

}  // namespace heed
