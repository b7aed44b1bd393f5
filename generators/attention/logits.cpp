#include "generators/attention/logits.h"

#include <limits>

#include "generators/common/element_type.h"

namespace heed {

using namespace Halide;

namespace {

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
    // To nearest by truncation, which each ISA has; round() is no single instruction of AVX-512 in Halide 21.
    Expr whole = cast<int32_t>(x - 0.5f), f = x - cast<float>(whole);
    Expr p = q[5];
    for (int i = 4; i >= 0; i--) {
        p = p * f + q[i];
    }
    p = p * f + 1.f;
    Expr scaled = reinterpret<float>(bits(p) + (whole << 23));
    return select(at_most(x, behind_minus_126), 0.f, scaled);
}

Expr is_negative_infinity(const Expr &x) { return bits(x) == negative_infinity_bits; }

Expr is_zero(const Expr &x) { return bits(x) == 0; }

RowResult with_sink(const Expr &max, const Expr &sum, const Expr &sink) {
    Expr none = is_negative_infinity(sink), no_key = is_zero(sum);
    Expr sink_logit = add_bias(0.f, sink), new_max = Halide::max(max, sink_logit);
    Expr key_factor = select(none, 1.f, exp2_nonpositive(max - new_max));
    Expr total = select(none, sum, sum * key_factor + exp2_nonpositive(sink_logit - new_max));

    // The logarithm of 0 is never taken and a NaN is passed on as bits: the default float mode may assume neither
    // happens.
    Expr total_bits = bits(total), is_nan = (total_bits & 0x7fffffff) > 0x7f800000;
    Expr finite = bits(select(none, max, new_max) * ln_2 + log(total));
    Expr lse = reinterpret<float>(select(no_key, bits(sink), is_nan, total_bits, finite));
    return {select(no_key, 0.f, key_factor), select(no_key, 1.f, total), lse};
}

// Up to 0.625 an odd polynomial (Cephes tanhf, error below 2 ulp), which keeps small arguments exact to the last bits;
// above, 1 - 2 e / (1 + e) with e = exp(-2 |z|).
Expr soft_capped(const Expr &logit, const Expr &cap) {
    Expr z = logit / cap, z2 = z * z;
    Expr p = (((-5.70498872745e-3f * z2 + 2.06390887954e-2f) * z2 - 5.37397155531e-2f) * z2 + 1.33314422036e-1f) * z2 -
             3.33332819422e-1f;
    Expr small = z + z * z2 * p;
    Expr size = reinterpret<float>(bits(z) & 0x7fffffff), e = exp2_nonpositive(size * (-2 * log2_e));
    Expr sign = bits(z) & Expr(INT32_MIN);
    Expr large = reinterpret<float>(bits(1.f - 2.f * e / (1.f + e)) | sign);
    return cap * select(bits(size) < 0x3f200000, small, large);
}

// In halves of 16 bits, whose differences are exact in float.
Expr token_distance(const Expr &key, const Expr &row, const Expr &offset) {
    auto difference = [&](auto half) { return cast<float>(half(key) - half(row) - half(offset)); };
    return difference([](const Expr &x) { return x >> 16; }) * 65536.f +
           difference([](const Expr &x) { return x & 0xffff; });
}

Expr alibi(const Expr &slope, const Expr &distance, const Expr &symmetric) {
    return slope * select(symmetric != cast<uint8_t>(0), min(distance, -distance), distance);
}

Expr add_bias(const Expr &logit, const Expr &bias) {
    Expr lowest = reinterpret<float>(Expr(lowest_bias_in_log2));
    return logit + select(at_most(bias, lowest_bias_in_log2), lowest, bias) * log2_e;
}

ChangedLogit changed_logit(const Expr &product, const LogitChanges &c, LogitUnits units) {
    const bool log2 = units == LogitUnits::log2;
    const auto in_units = [&](const Expr &x) { return log2 ? x * log2_e : x; };
    Expr scaled = product;
    if (c.scale.defined()) scaled = scaled * in_units(c.scale);
    if (c.key_scale.defined()) scaled = scaled * c.key_scale;
    Expr capped = scaled;
    if (c.cap.defined()) capped = select(c.cap_on, soft_capped(scaled, in_units(c.cap)), scaled);
    Expr added = c.bias;
    if (c.slope.defined()) {
        const Expr of_place = alibi(c.slope, c.distance, c.symmetric);
        added = added.defined() ? added + of_place : of_place;
    }
    Expr value = capped;
    if (added.defined()) value = log2 ? add_bias(capped, added) : capped + added;
    if (c.user) value = log2 ? add_bias(0.f, c.user(value * ln_2)) : c.user(value);
    return {scaled, capped, value};
}

Expr scaled_gradient(const Expr &of_value, const ChangedLogit &logit, const LogitChanges &c, const Expr &as_is) {
    Expr tangent = logit.capped / c.cap;
    return select(as_is || !c.cap_on, of_value, of_value * (1.f - tangent * tangent));
}

Expr is_visible(const LogitVisibility &v) {
    Expr seen;
    const auto require = [&](const Expr &condition) { seen = seen.defined() ? seen && condition : condition; };
    if (v.in_range.defined()) require(v.in_range);
    if (v.mask.defined()) require(select(v.mask_on, mask_allows(v.mask, v.mask_form), Internal::const_true()));
    if (v.bias.defined()) require(!is_negative_infinity(v.bias));
    if (v.user.defined()) require(v.user);
    return seen;
}

Expr mask_allows(const Expr &mask, const Expr &form) { return (mask != cast<uint8_t>(0)) != (form == mask_true_hides); }

Expr first_visible(const Expr &i, const Expr &visible_begin) { return max(i + visible_begin, 0); }

Expr end_visible(const Expr &i, const Expr &visible_end, const Expr &kv_len) { return min(i + visible_end, kv_len); }

}  // namespace heed
