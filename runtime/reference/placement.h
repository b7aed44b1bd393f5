// Where the tokens of an Attention are in the tensors of a call.
#pragma once

#include <cstdint>
#include <vector>

#include "heed/heed.h"

namespace heed_reference {

// Indices of the first two dimensions of a tensor; outer -1: the token is nowhere.
struct Slot {
    int64_t outer, inner;
};

// The first two extents of a tensor, and the place of token i of sequence b at slots[b * len + i].
struct Placement {
    int64_t outer = 0, inner = 0, len = 0;
    std::vector<Slot> slots;

    const Slot &at(int64_t b, int64_t i) const { return slots[static_cast<size_t>(b * len + i)]; }
    Slot &at(int64_t b, int64_t i) { return slots[static_cast<size_t>(b * len + i)]; }
};

struct Extents {
    int64_t n[4];
};

// Strides as the API defines them: all zero is packed, those of extent-1 dimensions mean nothing.
struct Strides {
    int64_t n[4];
    Strides(const Extents &extents, const heed_layout &layout);
};

// Elements from the first to the last one addressed.
int64_t span_of(const Extents &extents, const Strides &strides);

// One element of a tensor. HEED_I8 tensors have no values of their own.
void store(void *data, int64_t at, heed_dtype dtype, float x);
float load(const void *data, int64_t at, heed_dtype dtype);

// Copies rows [batch, len, heads, dim] into or out of a tensor with the given placement. What is nowhere is 0.
void scatter(const std::vector<float> &rows, const Placement &placement, const Extents &e, const Strides &s,
             heed_dtype dtype, void *data);
std::vector<float> gather(const Placement &placement, const Extents &e, const Strides &s, heed_dtype dtype,
                          const void *data);
// The same for int8 codes and their scales [outer, inner, heads].
void scatter_int8(const std::vector<float> &rows, const Placement &placement, const Extents &e, const Strides &s,
                  int8_t *codes, float *scales);

}  // namespace heed_reference
