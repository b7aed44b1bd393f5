// Strided views: the caller's layouts after validation.
#pragma once

#include <cstdint>

#include "heed/heed.h"

namespace heed {

constexpr int64_t max_int32 = INT32_MAX;

inline int32_t narrow(int64_t x) { return static_cast<int32_t>(x); }  // which fits

// Checked 64-bit arithmetic: false on overflow.
inline bool checked_add(int64_t a, int64_t b, int64_t *sum) { return !__builtin_add_overflow(a, b, sum); }
inline bool checked_mul(int64_t a, int64_t b, int64_t *product) { return !__builtin_mul_overflow(a, b, product); }

// A size in a chain of such steps: it stays too large once 64 bits do not hold it.
struct Size {
    int64_t value = 0;
    bool fits = true;

    bool at_most(int64_t most) const { return fits && value <= most; }
};
inline Size operator+(Size a, int64_t b) {
    Size sum;
    sum.fits = checked_add(a.value, b, &sum.value) && a.fits;
    return sum;
}
inline Size operator*(Size a, int64_t b) {
    Size product;
    product.fits = checked_mul(a.value, b, &product.value) && a.fits;
    return product;
}

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

struct Shape {
    int64_t extent[4];
};

// A validated tensor in the documented index order, innermost last. Strides of extent-1 dimensions are canonical:
// 1 innermost, 0 elsewhere. `span` counts the elements from the first to the last one addressed, 0 when empty.
struct View {
    int64_t extent[4];
    int64_t stride[4];
    int64_t span;
};

enum class Access { read, write };

// Validates `layout` for a tensor called `name`: no negative strides, innermost 1, no self-overlap when written, a span
// that 64 bits hold.
heed_status make_view(const char *name, const Shape &shape, const heed_layout &layout, Access access, View *view);

// As make_view for a mask or bias: `shape` entries are 0 (full), 1 or the full extent. The view has full extents and
// stride 0 on broadcast axes.
heed_status make_broadcast_view(const char *name, const Shape &full, const int32_t shape[4], const heed_layout &layout,
                                View *view);

}  // namespace heed
