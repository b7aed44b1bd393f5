#include "runtime/reference/placement.h"

#include <algorithm>

#include "runtime/reference/element.h"

namespace heed_reference {
namespace {

// visit(index of the row in [batch, len, heads], offset of the row in the tensor, index in [outer, inner, heads]).
template <class Visit>
void for_each_row(const Placement &placement, const Extents &e, const Strides &s, Visit visit) {
    for (size_t token = 0; token < placement.slots.size(); token++) {
        const Slot &slot = placement.slots[token];
        for (int64_t h = 0; h < e.n[2] && slot.outer >= 0; h++) {
            visit(static_cast<size_t>(static_cast<int64_t>(token) * e.n[2] + h),
                  slot.outer * s.n[0] + slot.inner * s.n[1] + h * s.n[2],
                  (slot.outer * placement.inner + slot.inner) * e.n[2] + h);
        }
    }
}

}  // namespace

Strides::Strides(const Extents &extents, const heed_layout &layout) {
    const bool packed = std::all_of(layout.stride, layout.stride + 4, [](int64_t s) { return s == 0; });
    int64_t inner = 1;
    for (int d = 3; d >= 0; d--) {
        n[d] = packed ? inner : extents.n[d] == 1 ? 0 : layout.stride[d];
        inner *= extents.n[d];
    }
}

int64_t span_of(const Extents &extents, const Strides &strides) {
    int64_t last = 0;
    for (int d = 0; d < 4; d++) {
        if (extents.n[d] == 0) return 0;
        last += (extents.n[d] - 1) * strides.n[d];
    }
    return last + 1;
}

void store(void *data, int64_t at, heed_dtype dtype, float x) {
    if (dtype == HEED_F32) {
        static_cast<float *>(data)[at] = x;
    } else {
        static_cast<uint16_t *>(data)[at] = to_bits(dtype, x);
    }
}

float load(const void *data, int64_t at, heed_dtype dtype) {
    return dtype == HEED_F32 ? static_cast<const float *>(data)[at]
                             : from_bits(dtype, static_cast<const uint16_t *>(data)[at]);
}

void scatter(const std::vector<float> &rows, const Placement &placement, const Extents &e, const Strides &s,
             heed_dtype dtype, void *data) {
    const int64_t dim = e.n[3];
    for_each_row(placement, e, s, [&](size_t row, int64_t to, int64_t) {
        for (int64_t d = 0; d < dim; d++)
            store(data, to + d * s.n[3], dtype, rows[row * static_cast<size_t>(dim) + static_cast<size_t>(d)]);
    });
}

std::vector<float> gather(const Placement &placement, const Extents &e, const Strides &s, heed_dtype dtype,
                          const void *data) {
    const auto dim = static_cast<size_t>(e.n[3]);
    std::vector<float> rows(placement.slots.size() * static_cast<size_t>(e.n[2]) * dim);
    for_each_row(placement, e, s, [&](size_t row, int64_t from, int64_t) {
        for (size_t d = 0; d < dim; d++)
            rows[row * dim + d] = load(data, from + static_cast<int64_t>(d) * s.n[3], dtype);
    });
    return rows;
}

void scatter_int8(const std::vector<float> &rows, const Placement &placement, const Extents &e, const Strides &s,
                  int8_t *codes, float *scales) {
    const auto dim = static_cast<size_t>(e.n[3]);
    std::vector<int8_t> row_codes(dim);
    for_each_row(placement, e, s, [&](size_t row, int64_t to, int64_t scale) {
        scales[scale] = quantize_row(rows.data() + row * dim, static_cast<int32_t>(dim), row_codes.data());
        for (size_t d = 0; d < dim; d++) codes[to + static_cast<int64_t>(d) * s.n[3]] = row_codes[d];
    });
}

}  // namespace heed_reference
