// The one place that says how far a result may lie from the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference.h"

namespace heed_test {

// How much a case must prove, or else it fails as MISTRUSTED.
struct Trust {
    // Every visible v shows in some output when it changes by 2^10 * Vmax. Peaked data has weights below that.
    bool every_key_shows = true;
    // The reference is not mostly zero and its range is 100 times the bound.
    bool range = true;
};

// Ratios are error / allowed error; above 1 is wrong. A ratio that was not measured is 0.
struct Verdict {
    bool ok = true;
    double out_ratio = 0;  // the worst element
    double max_ratio = 0;  // largest error against the naive baseline, for at least 4096 outputs
    double lse_ratio = 0;
    double max_error = 0;    // of out
    std::string complaint;  // of the first fault
    std::string summary() const;
};

// Compares every element of out [batch, q_len, num_heads, head_dim_v] and lse [batch, num_heads, q_len] (may be empty)
// with the reference, by
//   |out - ref| <= u_out * |ref| + (8 + S) * 2^-23 * Vmax    and    |lse - ref| <= 8 * 2^-23 * max(1, |ref|) + S * 2^-23
// with S and Vmax of the row. Rows that see no key and rows that see one key compare bits; where the reference is NaN
// the result must be NaN.
Verdict judge(const Attention &a, const Reference &ref, const std::vector<float> &out, const std::vector<float> &lse,
              const Trust &trust = {});

// The max-error policy needs the naive baseline from 4096 outputs on.
bool needs_baseline(const Attention &a);

// The bound of one element of `out` in a row whose largest visible |logit| and |v| are given.
double out_bound(heed_dtype dtype, double ref, double max_logit, double max_v);
double lse_bound(double ref, double max_logit);

// Bounds with a derivation of their own.
double constant_v_bound(double v);                    // a softmax of equal logits over equal v: 16 eps
double flushed_exp_bound(int64_t kv_len, double max_v);  // weights below FLT_MIN may be flushed to zero
double two_results_bound(double max_logit, double max_v);  // f32: two results that each keep out_bound

}  // namespace heed_test
