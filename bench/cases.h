// The named workloads that Heed and its peers are measured on. Names, shapes and FLOP counts stay fixed, so that
// numbers of different days and libraries compare; each can be had in every element type.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "heed/heed.h"

namespace heed_bench {

enum class CaseKind { prefill, decode, seed };

// seed: tiny, dominated by the cost of a call. An extra tensor, shaped [batch, num_heads, q_len, kv_len] or broadcast:
enum class CaseMask {
    none,
    bias_full,        // N(0,1), every axis full
    bias_shared,      // N(0,1), [1, 1, q_len, kv_len]
    mask_shared,      // 80 % of the keys visible, key 0 always, [1, 1, q_len, kv_len]
    mask_key_padding  // the first 3/4 of the keys, [batch, 1, q_len, kv_len]
};

// All tensors are laid out [batch, heads, positions, head_dim]. Causal and window are aligned bottom right.
struct Case {
    std::string name, suite;
    CaseKind kind = CaseKind::prefill;
    int32_t batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, head_dim_v;
    bool causal = false;
    int32_t window_left = -1;  // tokens before the query's own; a peer's "window 256" counts that too: 255 here
    CaseMask mask = CaseMask::none;
    heed_dtype dtype = HEED_F32, kv_dtype = HEED_F32;
};

// In f32. Suites: "main", "rag" (ragged sizes, masks, other head dims) and "small" (few queries and keys: what a call
// costs).
const std::vector<Case> &all_cases();

Case in_types(Case c, heed_dtype dtype, heed_dtype kv_dtype);

const char *kind_name(CaseKind kind);
const char *mask_name(CaseMask mask);

int64_t q_elements(const Case &c);
int64_t k_elements(const Case &c);
int64_t v_elements(const Case &c);
int64_t out_elements(const Case &c);
int64_t bias_elements(const Case &c);  // 0 without one
int64_t mask_elements(const Case &c);
int64_t scale_elements(const Case &c);  // of k_scale, likewise v_scale; 0 but for int8 keys

// Of its mask or bias; broadcast axes are 1.
std::array<int32_t, 4> mask_shape(const Case &c);

bool visible(const Case &c, int64_t i, int64_t j);  // by causal and window

// Pairs of query and key that count, over batch and heads: all; half of a causal square; else those that are visible.
// A mask or bias does not lessen them.
double nominal_pairs(const Case &c);
double nominal_flops(const Case &c);  // 2 * pairs * (head_dim + head_dim_v)
double kv_bytes(const Case &c);       // with the scales

heed_problem make_problem(const Case &c, int threads);

}  // namespace heed_bench
