// The one place that says how far a result may be from the reference.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/reference/reference.h"

namespace heed_reference {

// How much a case must prove, or else it fails as MISTRUSTED.
struct Trust {
    // Every visible v shows in some output when it changes by 2^10 * Vmax. Peaked data has weights below that.
    bool every_key_shows = true;
    // The reference is not mostly zero and its range is 100 times the bound.
    bool range = true;

    static Trust peaked() { return {false, true}; }
};

// Ratios are error / allowed error; above 1 is wrong. A ratio that was not measured is 0.
struct Verdict {
    bool ok = true;
    double out_ratio = 0;  // the worst element
    double rms_ratio = 0;  // root mean square and largest error of out against the baseline's, where needs_baseline()
    double max_ratio = 0;
    double lse_ratio = 0;
    double max_error = 0;   // of out
    std::string complaint;  // of the first fault
    std::string summary() const;
};

// Compares every element of out [batch, q_len, num_heads, head_dim_v] and lse [batch, num_heads, q_len] (may be empty)
// with the reference, by
//   |out - ref| <= u_out * |ref| + half_step + (8 + e + c * S) * 2^-23 * Vmax
//   |lse - ref| <= 8 * 2^-23 * max(1, |ref|) + c * S * 2^-23
// with S and Vmax of the row and c = max(1, sqrt(head_dim) / 5): the roundings of a dot product add up like a random
// walk over its partial sums, which are of the size of S. Measured over 100 seeds of N(0,16) data and all f32 kernels,
// the worst ratios at head_dim 640 are 0.49 of out and 0.90 of lse; with c = 1 they would be 2.5 and 4.6. u_out and
// half_step: out is rounded to the I/O type, to half a unit of a normal number or half the smallest subnormal. int8
// keys: the scale is multiplied in after the dot product, alone or with `scale`: 2 roundings of half a unit, so c grows
// by 1. int8 values: the scale is multiplied into the weight, half a unit of Vmax, so e is 1. Dropout: 1 - p, its
// inverse and the product with it are rounded, 3 halves of a unit of Vmax: e grows by 2. Kernels whose weights are
// rounded to the I/O type before they meet v (Attention::rounds_weights): each weight w is off by up to u_w * w, u_w
// being u_out and, in bf16, the 8e-5 of the power before it is rounded. Where the weights' sum is of exact ones, out is
// off by u_w * sum p |v| at most, where it is of the rounded ones by u_w * sum p |v - out|; the larger counts for each
// key. The roundings are independent and each uniform within its half unit: their sum is off by 6 standard deviations,
// 6 / sqrt(3) * u_w * sqrt(sum (p v)^2), in one of 10^9 elements; neighbouring keys of equal weight are rounded alike
// and are one part of that sum. The less of the two is added. f16 weights below 2^-14 lose up to 2^-25 each instead:
// 2^-25 * Vmax for each visible key, the largest weight being 1. Rows that see no key, see one key, or have all keys
// dropped compare bits, except that one int8 key may give either neighbour of a number half-way between them where
// weights are rounded; where the reference is NaN the result must be NaN.
Verdict verdict_of(const Attention &a, const Reference &ref, const std::vector<float> &out,
                   const std::vector<float> &lse, const Trust &trust = {});

// From 4096 outputs and 64 rows on, errors are held against the naive baseline's: f16 and bf16 to 1, f32 to 1.5 times
// the root mean square and 3 times the largest. (The largest error is a matter of luck: of a kernel that equals the
// baseline on average, it is up to 2.2 times as large in one of 100 cases.)
bool needs_baseline(const Attention &a);

// The bound of one element of `out`, and of lse, in a row whose largest visible |logit| and |v| are given.
// weight_rounding: Reference's, where the kernel may round weights.
double out_bound(const Attention &a, double ref, double max_logit, double max_v, double weight_rounding);
// The bound of a sum of parts with these sums of sizes and squares, each off by up to its size: the less of all at once
// and 6 standard deviations.
double random_sum_bound(double sizes, double squares);
// What rounding a float to the dtype may change: half a unit of a normal number, half the smallest subnormal.
double rounding_bound(heed_dtype dtype, double x);
double lse_bound(const Attention &a, double ref, double max_logit);

// Bounds with a derivation of their own.
// lse of one key whose logit is soft-capped: the cap is right to 4 eps, and lse goes through base 2, with two factors
// that are rounded twice each, half an eps each time, and the sum's log, which is 0.
double softcapped_lse_bound(double logit);
// The mean of n samples whose variances are known: 4 standard deviations, and what the samples themselves may be off.
double mean_bound(double variance, int32_t n, double sample_bound);
double constant_v_bound(double v);                       // a softmax of equal logits over equal v: 16 eps
double flushed_exp_bound(int64_t kv_len, double max_v);  // weights below FLT_MIN may be flushed to zero

}  // namespace heed_reference
