// Where the tokens of an Attention lie in the tensors of a call: dense, varlen or paged.
#pragma once

#include <cstdint>
#include <vector>

#include "attention.h"

namespace heed_test {

struct CallOptions;

// Indices of the first two dimensions of a tensor; outer -1: the token lies nowhere.
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

struct Storage {
    Placement q, kv;
    std::vector<int32_t> cu_seqlens_q, cu_seqlens_kv, kv_lens, page_table;  // those that the call needs
    int32_t max_pages_per_seq = 0;
};

// Dense queries need a.q_lens empty. Pages lie in random order among unused ones; table entries behind a sequence's
// pages are 0x7fffffff.
Storage lay_out(const Attention &a, const CallOptions &options);

constexpr int32_t garbage_page = 0x7fffffff;

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

// Copies rows [batch, len, heads, dim] into or out of a tensor with the given placement. What lies nowhere is 0.
void scatter(const std::vector<float> &rows, const Placement &placement, const Extents &e, const Strides &s,
             heed_dtype dtype, void *data);
std::vector<float> gather(const Placement &placement, const Extents &e, const Strides &s, heed_dtype dtype,
                          const void *data);
// The same for int8 codes and their scales [outer, inner, heads].
void scatter_int8(const std::vector<float> &rows, const Placement &placement, const Extents &e, const Strides &s,
                  int8_t *codes, float *scales);

}  // namespace heed_test
