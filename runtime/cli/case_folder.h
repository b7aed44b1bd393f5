// A case folder: problem.json beside one .npy file per tensor. The meaning of its keys is that of heed_problem.
//
// {"dtype": "f32", "kv_dtype": null, "layout": {"q": "bshd", "k": "bshd", "v": "bshd", "out": "bshd"},
//  "q_storage": "dense", "kv_storage": "contiguous", "max_q_len": null, "dropout": {"p": 0, "seed": 0, "offset": 0}}
// and the fields of HEED_CALL_FIELDS and HEED_LOGIT_FIELDS (heed/fields.h); null is a NaN, positions are words.
//
// These are the defaults. Dimensions come from the arrays. A layout names the axes of the array in order: batch,
// sequence position, head, dim; varlen tensors have no b, it is skipped; of paged ones b is the page, s the place in
// it. k_scale and v_scale have the axes of k and v without d. max_kv_len, an axis of mask and bias and part of where
// dropout strikes, is the capacity of contiguous keys, the longest sequence of varlen ones, and as many keys as a row
// of page_table has place for. Files: q, k, v; and mask, bias, kv_lens, q_offsets, cu_seqlens_q, cu_seqlens_kv,
// page_table, sink, alibi_slopes, k_scale, v_scale, which are used when they are there, and an error where the problem
// has no use for them. f16 elements are npy float16 or, as bf16 ones, uint16 bits; a bias is float32 or of the dtype.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "heed/heed.h"
#include "npy.h"

namespace heed_cli {

// Axes of an array in order, a permutation of "bshd".
struct Layouts {
    std::string q = "bshd", k = "bshd", v = "bshd", out = "bshd";
};

struct Case {
    heed_problem problem;  // complete, strides of all tensors included; wants lse
    Layouts layouts;
    uint64_t dropout_seed = 0, dropout_offset = 0;
    std::map<std::string, Array> arrays;  // by file name without .npy; integers as i32
    Array k_scale, v_scale;               // of int8 keys and values, in the API's order

    bool has(const std::string &name) const { return arrays.count(name) != 0; }
};

// Checks what makes the folder consistent in itself; the rest is heed_plan_create's to refuse. Throws InvalidInput.
Case read_case(const std::filesystem::path &folder);

// Fills in what the problem has from the arrays: dimensions, strides, features. The rest of `c` is set. Throws
// InvalidInput.
void complete_case(Case &c);

// Writes problem.json and the arrays of `c` into an existing folder. Throws InvalidInput.
void write_case(const std::filesystem::path &folder, const Case &c);

}  // namespace heed_cli
