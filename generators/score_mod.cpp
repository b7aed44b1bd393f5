#include "score_mod.h"

#include <limits>

namespace heed {

using namespace Halide;

namespace {

Expr bits(const Expr &x) { return reinterpret<int32_t>(x); }

constexpr int32_t negative_infinity_bits = INT32_MIN + 0x7f800000;

// -inf <= x <= the float with these bits, as one comparison of bits: of x < c the default float mode may make !(x >=
// c), which holds for NaN, and it may assume that a product is not infinite.
Expr at_most(const Expr &x, uint32_t first) {
    return reinterpret<uint32_t>(x) - Expr(first) <= Expr(0xff800000u - first);
}

constexpr uint32_t behind_minus_126 = 0xc2fc0001u;     // the float next below -126
constexpr uint32_t lowest_bias_in_log2 = 0xff317216u;  // -2.3586e38: times log2(e) it is just above -FLT_MAX

}  // namespace

Expr lowest_logit() { return std::numeric_limits<float>::lowest(); }

Expr exp2_nonpositive(const Expr &x) {
    // Least maximal relative error of 1 + f * q(f) over [-0.5, 0.5], q of degree 5: 8e-8 in float arithmetic.
    const float q[] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6aeeap-5f,
                       0x1.3b2d4cp-7f, 0x1.5f3dbcp-10f, 0x1.41fae0p-13f};
    Expr whole = round(x), f = x - whole;
    Expr p = q[5];
    for (int i = 4; i >= 0; i--) {
        p = p * f + q[i];
    }
    p = p * f + 1.f;
    Expr scaled = reinterpret<float>(bits(p) + (cast<int32_t>(whole) << 23));
    return select(at_most(x, behind_minus_126), 0.f, scaled);
}

Expr is_negative_infinity(const Expr &x) { return bits(x) == negative_infinity_bits; }

Expr is_zero(const Expr &x) { return bits(x) == 0; }

Expr log_sum_exp(const Expr &max, const Expr &sum) {
    Expr sum_bits = bits(sum), is_nan = (sum_bits & 0x7fffffff) > 0x7f800000;
    Expr finite = bits(max * ln_2 + log(sum));
    return reinterpret<float>(select(sum_bits == 0, negative_infinity_bits, is_nan, sum_bits, finite));
}

Expr add_bias(const Expr &logit, const Expr &bias) {
    Expr lowest = reinterpret<float>(Expr(lowest_bias_in_log2));
    return logit + select(at_most(bias, lowest_bias_in_log2), lowest, bias) * log2_e;
}

Expr mask_allows(const Expr &mask, const Expr &mask_true_hides) {
    return (mask != cast<uint8_t>(0)) != (mask_true_hides != cast<uint8_t>(0));
}

Expr first_visible(const Expr &i, const Expr &visible_begin) { return max(i + visible_begin, 0); }

Expr end_visible(const Expr &i, const Expr &visible_end, const Expr &kv_len) { return min(i + visible_end, kv_len); }

}  // namespace heed
