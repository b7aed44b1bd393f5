// The named workloads that Heed and its peers are measured on. Names, shapes and FLOP counts stay fixed, so that
// numbers of different days and libraries compare; each can be had in every element type.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/reference/attention.h"

namespace heed_bench {

enum class CaseKind { prefill, decode, seed };

// seed: tiny, dominated by the cost of a call. An extra tensor, shaped [batch, num_heads, q_len, kv_len] or broadcast:
enum class CaseMask {
    none,
    bias_full,         // N(0,1), every axis full
    bias_shared,       // N(0,1), [1, 1, q_len, kv_len]
    mask_shared,       // 80 % of the keys visible, key 0 always, [1, 1, q_len, kv_len]
    mask_key_padding,  // the first 3/4 of the keys, [batch, 1, q_len, kv_len]
    // [1, 1, q_len, kv_len]: what flags could say
    mask_all,           // all keys
    mask_left_padding,  // all but the first 5
    mask_causal,        // aligned bottom right
    mask_window         // of them the last 256
};
constexpr int num_masks = 9;

// The layout of q, k, v and out in memory.
enum class CaseLayout {
    tokens,         // [batch, position, head, element], packed: the API's default
    heads_outside,  // [batch, head, position, element], packed
    padded,         // as tokens, 64 bytes between two positions
    far,            // as tokens, 4 KB from each head to the next
    pages           // k and v as tokens, in pages of page_tokens that do not follow each other
};
constexpr int num_layouts = 5;
constexpr int32_t page_tokens = 16;

// Causal and window are aligned bottom right. window_left: tokens before the query's own; a peer's "window 256" counts
// that too: 255 here.
struct Case : heed_reference::LogitFields {
    std::string name, suite;
    CaseKind kind = CaseKind::prefill;
    CaseLayout layout = CaseLayout::tokens;
    int32_t batch, num_heads, num_kv_heads, q_len, kv_len, head_dim, head_dim_v;
    CaseMask mask = CaseMask::none;
#define HEED_DECLARE(name, used, ...) bool used = false;
    HEED_HEAD_ARRAYS(HEED_DECLARE)
#undef HEED_DECLARE
    float dropout_p = 0;
    heed_dtype dtype = HEED_F32, kv_dtype = HEED_F32;
};

// In f32. Suites: "main", "rag" (ragged sizes, masks, other head dims), "logits" (what changes logits), "layouts",
// "masks", "small" (few queries and keys: what a call costs), "decode" (groups, layouts and few queries) and "lengths".
const std::vector<Case> &all_cases();

Case in_types(Case c, heed_dtype dtype, heed_dtype kv_dtype);

const char *kind_name(CaseKind kind);
const char *mask_name(CaseMask mask);
const char *layout_name(CaseLayout layout);

// A tensor's strides of [batch, position, head, element], and the elements from its first to its last one.
// With pages k's and v's are of [page, token of it, head, element].
struct TensorLayout {
    heed_layout strides;
    int64_t elements;
    int64_t pages_of_batch = 0, num_pages = 0;  // 0: it has none
    int64_t offset(int64_t b, int64_t position, int64_t head) const;
};
TensorLayout q_layout(const Case &c);
TensorLayout k_layout(const Case &c);
TensorLayout v_layout(const Case &c);
TensorLayout out_layout(const Case &c);
// [batch, pages of a sequence]; empty without pages.
std::vector<int32_t> page_table(const Case &c);
int64_t bias_elements(const Case &c);  // 0 without one
int64_t mask_elements(const Case &c);
int64_t scale_elements(const Case &c);  // of k_scale, likewise v_scale; 0 except for int8 keys

// The shape of its mask or bias; broadcast axes are 1.
std::array<int32_t, 4> mask_shape(const Case &c);

bool visible(const Case &c, int64_t i, int64_t j);  // by causal and window
bool mask_is_random(const Case &c);
bool mask_shows(const Case &c, int64_t i, int64_t j);  // a mask that is not random

// Pairs of query and key that count, over batch and heads: all; half of a causal square; else those that are visible.
// A mask or bias does not lessen them.
double nominal_pairs(const Case &c);
double nominal_flops(const Case &c);  // 2 * pairs * (head_dim + head_dim_v)
double kv_bytes(const Case &c);       // with the scales

heed_problem make_problem(const Case &c, int threads);

}  // namespace heed_bench
