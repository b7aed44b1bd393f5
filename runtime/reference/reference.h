// The oracle: fp64 loops over the contract's formula, and the same loops in float as a baseline of achievable error.
// Nothing here is shared with kernels or the runtime.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/reference/attention.h"

namespace heed_reference {

// Rows are indexed as lse: [batch, num_heads, q_len].
struct Reference {
    std::vector<double> out;  // [batch, q_len, num_heads, head_dim_v]
    // As out: how much out may change when each weight changes by one part in one, up or down at random: see out_bound.
    // 0 unless the case rounds weights.
    std::vector<double> weight_rounding;
    std::vector<double> lse;        // natural log
    std::vector<double> max_logit;  // S: the largest size of a logit that the query sees, what its rounding errors
                                    // scale with, see Logit in reference.cpp
    std::vector<double> max_v;      // largest |v| that the query sees, over 1 - dropout_p (Vmax)
    std::vector<int32_t> num_visible;
    std::vector<int32_t> num_kept;  // visible keys that dropout leaves
    // For each key, [batch, num_kv_heads, kv_len]: how much a change of its v by Vmax shows, over the bound of the
    // row's largest output; the largest over all rows. -1 where no query sees the key and keeps it.
    std::vector<double> key_effect;
    // Errors of `out` of the naive low-precision baseline: q, k, v, logits, weights and out rounded to the dtype, plain
    // sums in float. Over four orders of summation, the largest |error| and the root of the mean square. NaN where the
    // baseline was not asked for.
    double naive_max_error, naive_rms_error;
};

// Whether dropout keeps a key's weight.
bool dropout_keeps(const Attention &a, int32_t b, int32_t h, int32_t i, int32_t j);

Reference compute_reference(const Attention &a, bool with_baseline);

// The same of data that is held in its types already: an int8 row keeps the scale it has.
Reference compute_reference_as_held(const Attention &a, bool with_baseline);

// The same from a cache of bounded size, with the baseline where the tolerance policy needs it.
std::shared_ptr<const Reference> reference_of(const Attention &a);

}  // namespace heed_reference
