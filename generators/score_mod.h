#pragma once
// What happens to a logit between q.k and the softmax, as Expr functions shared by every algorithm form.
// Logits are held in units of log2: scale * log2(e) is folded into q, so that the softmax needs exp2 only.

#include "Halide.h"

namespace heed {

constexpr float log2_e = 1.44269504088896340736f;
constexpr float ln_2 = 0.69314718055994530942f;

// The value that stands for "no key seen yet" in a running maximum. Finite, so that a difference of two of them is 0,
// not NaN.
Halide::Expr lowest_logit();

// 2^x for x <= 0; relative error below 1.3e-7; exactly 1 at 0; exactly 0 below -126; NaN stays NaN.
Halide::Expr exp2_nonpositive(const Halide::Expr &x);

// Bits of a float: comparisons of bits survive the default float mode, which may delete tests for infinity and NaN.
Halide::Expr is_negative_infinity(const Halide::Expr &x);
Halide::Expr is_zero(const Halide::Expr &x);

// Natural logarithm of the softmax denominator, from the running maximum (in log2) and the sum relative to it.
// A sum of 0 (no visible key) gives minus infinity, NaN stays NaN: both selected as bits, for the same reason.
Halide::Expr log_sum_exp(const Halide::Expr &max, const Halide::Expr &sum);

// Logit plus an additive bias in natural units. A finite bias as low as -FLT_MAX stays finite, NaN stays NaN.
Halide::Expr add_bias(const Halide::Expr &logit, const Halide::Expr &bias);

// Whether the mask byte lets the query attend; mask_true_hides (0 or 1) inverts the convention.
Halide::Expr mask_allows(const Halide::Expr &mask, const Halide::Expr &mask_true_hides);

// First key that query position i may see, and the key after the last one.
Halide::Expr first_visible(const Halide::Expr &i, const Halide::Expr &visible_begin);
Halide::Expr end_visible(const Halide::Expr &i, const Halide::Expr &visible_end, const Halide::Expr &kv_len);

}  // namespace heed
