#include "generators/attention/logits.h"

#include <array>
#include <limits>

#include "generators/common/device_memory.h"
#include "generators/common/element_type.h"
#include "generators/common/strict.h"

namespace heed {

using namespace Halide;

namespace {

// -inf <= x <= the float with these bits, as one comparison of bits: of x < c the default float mode may make !(x >=
// c), which holds for NaN, and it may assume that a product is not infinite.
Expr at_most(const Expr &x, uint32_t first) {
    return reinterpret<uint32_t>(x) - Expr(first) <= Expr(0xff800000u - first);
}

constexpr uint32_t behind_minus_126 = 0xc2fc0001u;     // the float next below -126
constexpr uint32_t lowest_sink_in_log2 = 0xff317216u;  // -2.3586e38: times log2(e) it is just above -FLT_MAX

// What the logits of a query are multiplied by. Rounded as written, and not joined with other products: schedules have
// the same bits, and the quotient finds whole numbers.
Expr query_factor(const LogitChanges &c) {
    Expr tokens = max(c.position, 0.f) + cast<float>(c.temperature_shift);
    Expr intervals = floor(tokens / cast<float>(c.temperature_interval));
    // A polynomial: as a call it would be one that strict_float() does not reach.
    Expr growth = c.temperature_growth * Internal::halide_log(1.f + intervals);
    if (c.selects_growth) growth = select(c.growth_off(), 0.f, growth);
    Expr temperature = c.temperature * (1.f + growth);
    return strict_float(c.scale.defined() ? c.scale * temperature : temperature);
}

// A finite sink as low as -FLT_MAX stays finite; none, minus infinity, is as low.
Expr in_log2(const Expr &sink) {
    const Expr lowest = reinterpret<float>(Expr(lowest_sink_in_log2));
    return select(at_most(sink, lowest_sink_in_log2), lowest, sink) * log2_e;
}

// Converts a logit that is an exponent of e.
Expr in_units(const Expr &natural, LogitUnits units) {
    return units == LogitUnits::natural ? natural : natural * log16_e;
}

// The powers that `octaves` times x are: 2^x and 16^x. The product is exact, and joins each of its sums in an FMA.
struct Power {
    float octaves;

    Expr exponent(const Expr &x) const { return octaves == 1 ? x : x * octaves; }
    // The bits of the float next below -126 / octaves, a power of 2.
    uint32_t behind_least() const { return behind_minus_126 - (octaves == 1 ? 0u : 2u << 23); }
    // `whole` is that much below the integer.
    Expr from(const Expr &x, const Expr &whole, int above = 0) const;
    // To nearest by truncation, which each ISA has; round() is no single instruction of AVX-512 in Halide 21.
    Expr up_to(int most, const Expr &x) const {
        const int above = static_cast<int>(octaves) * most;
        return from(x, cast<int32_t>(exponent(x) - (0.5f + static_cast<float>(above))), above);
    }
    Expr any(const Expr &x) const { return from(x, cast<int32_t>(exponent(x) + select(x > 0.f, 0.5f, -0.5f))); }
};
constexpr Power power_of_2 = {1}, power_of_16 = {4};

// With an integer next to the exponent.
Expr Power::from(const Expr &x, const Expr &whole, int above) const {
    const auto unit = static_cast<float>(1 << above);  // not added to the bits, where it would make NaN a number
    // Least maximal relative error of 1 + f * q(f) over [-0.5, 0.5], q of degree 5: 8e-8 in float arithmetic.
    const float q[] = {0x1.62e430p-1f, 0x1.ebfbdcp-3f,  0x1.c6aeeap-5f,
                       0x1.3b2d4cp-7f, 0x1.5f3dbcp-10f, 0x1.41fae0p-13f};
    Expr number = cast<float>(whole);
    if (above > 0) number = strict(Internal::Call::strict_add, number, static_cast<float>(above));
    Expr f = exponent(x) - number, p = q[5] * unit;
    for (int i = 4; i >= 0; i--) {
        p = p * f + q[i] * unit;
    }
    p = p * f + unit;
    Expr scaled = reinterpret<float>(bits(p) + (whole << 23));
    return select(at_most(x, behind_least()), 0.f, scaled);
}

// The largest float instead of an infinity.
Expr kept_finite(const Expr &x) {
    Expr size = min(bits(x) & 0x7fffffff, 0x7f7fffff);  // of bits: the default float mode may assume x is finite
    return reinterpret<float>(size | (bits(x) & Expr(INT32_MIN)));
}

// A score function's minus infinity is the lowest logit: `visible` hides keys.
Expr user_logit(const std::function<Expr(const Expr &)> &user, const Expr &logit, LogitUnits units) {
    if (units == LogitUnits::natural) return user(logit);
    Expr found = user(logit * ln_16);
    return in_units(select(is_negative_infinity(found), lowest_logit(), found), units);
}

}  // namespace

Expr lowest_logit() { return std::numeric_limits<float>::lowest(); }

Expr exp2_nonpositive(const Expr &x) { return power_of_2.up_to(0, x); }
Expr exp16_nonpositive(const Expr &x) { return power_of_16.up_to(0, x); }
Expr exp16_any(const Expr &x) { return power_of_16.any(x); }
Expr exp16_up_to(int most, const Expr &x) { return power_of_16.up_to(most, x); }

Expr fixed_reference(const Expr &reference) {
    return select(reference == lowest_logit(), lowest_logit(), 32 * fixed_unit - reference * fixed_unit);
}

namespace {

// False for NaN.
Expr is_below(const Expr &x, float bound) { return strict(Internal::Call::strict_lt, x, bound); }

// The bits of 2^x from x + `above` in fixed point of 2^23, q being a polynomial of u in [1, 2] for 2^(u - 1 + 127 -
// above): the whole part is the exponent, and u - 1 the fraction.
template <size_t N>
Expr power_of_fixed(const Expr &fixed, const std::array<float, N> &q) {
    Expr u = (fixed & 0x007fffff) | 0x3f800000, f = reinterpret<float>(u), p = q[N - 1];
    for (size_t i = N - 1; i > 0; i--) p = p * f + q[i - 1];
    return reinterpret(fixed.type(), p) + (fixed - u);
}

// Least maximal relative error of a polynomial of degree 3 for 2^(u - 2), 7.5e-5, with `more` on top of it.
Expr power_of_128(const Expr &fixed, float more) {
    return power_of_fixed<4>(fixed, {0x1.cefc4cp-3f + more, 0x1.e93d46p-3f, -0x1.065aa8p-8f, 0x1.3f96a4p-5f});
}

}  // namespace

// What is too small becomes 0. A NaN becomes all ones, and in the result minus infinity, which makes NaN of the sums
// that it is a term of.
Expr bf16_weight(const Expr &fixed_point) {
    const float point = 0x1p23f;
    // Half a unit of bf16 rounds what is then cut off.
    return power_of_128(cast<uint32_t>(select(is_below(fixed_point, point), point, fixed_point)), 0x1p-9f);
}

Expr weight_for_bf16(const Expr &fixed_point) {
    Expr power = power_of_128(cast<uint32_t>(fixed_point), 0.f);
    return reinterpret<float>(select(is_below(fixed_point, 0x1p24f), Expr(0u), power));
}

// Around 0 a float holds more of a power's logarithm than it does with 128 on top: rounding it to 24 bits moves 2^-a by
// a * 4e-8. The polynomial is of degree 5 for 2^(u + 126), exact at 1: 8e-8, 1.8e-7 with its roundings.
Expr power_of_units(const Expr &units) {
    const float least = -127 * 0x1p23f;
    const std::array<float, 6> q = {0x1.fe52e4p125f, 0x1.69f936p125f,  0x1.bb2b4cp123f,
                                    0x1.3a991ep122f, -0x1.4e18ecp115f, 0x1.e974fap117f};
    Expr fixed = cast<int32_t>(select(is_below(units, least), least, units));
    return reinterpret<float>(power_of_fixed(fixed, q));
}

Expr is_negative_infinity(const Expr &x) { return bits(x) == negative_infinity_bits; }

Expr is_zero(const Expr &x) { return bits(x) == 0; }

RowResult with_sink(const Expr &max, const Expr &sum, const Expr &sink, LogitUnits units) {
    const bool log16 = units == LogitUnits::log16;
    const auto power = [&](const Expr &x) { return log16 ? exp16_nonpositive(x) : exp2_nonpositive(x); };
    Expr none = is_negative_infinity(sink), no_key = is_zero(sum);
    Expr sink_logit = log16 ? in_units(sink, units) : in_log2(sink), new_max = Halide::max(max, sink_logit);
    Expr key_factor = select(none, 1.f, power(max - new_max));
    Expr total = select(none, sum, sum * key_factor + power(sink_logit - new_max));

    // The logarithm of 0 is never taken and a NaN is passed on as bits: the default float mode may assume neither
    // happens.
    Expr total_bits = bits(total), is_nan = (total_bits & 0x7fffffff) > 0x7f800000;
    Expr largest = kept_finite(select(none, max, new_max) * (log16 ? ln_16 : ln_2));  // by rounding it may pass FLT_MAX
    Expr lse = reinterpret<float>(select(no_key, bits(sink), is_nan, total_bits, bits(largest + log(total))));
    return {select(no_key, 0.f, key_factor), select(no_key, 1.f, total), lse};
}

// Up to 0.625 an odd polynomial (Cephes tanhf, error below 2 ulp), which keeps small arguments exact to the last bits;
// above, that of the size, 1 - 2 / (1 + exp(2 |z|)), with the sign.
Expr soft_capped(const Expr &logit, const Expr &cap) {
    Expr z = logit / cap, size = reinterpret<float>(bits(z) & 0x7fffffff), e = exp2_nonpositive(size * (-2 * log2_e));
    Expr z2 = z * z;
    Expr p = (((-5.70498872745e-3f * z2 + 2.06390887954e-2f) * z2 - 5.37397155531e-2f) * z2 + 1.33314422036e-1f) * z2 -
             3.33332819422e-1f;
    Expr of_large = 1.f - 2.f * e / (1.f + e), sign = bits(z) & Expr(INT32_MIN);
    return cap * select(bits(size) < 0x3f200000, z + z * z2 * p, reinterpret<float>(bits(of_large) | sign));
}

// Up to 0.3125 an odd polynomial (minimax, 2e-8), above 1 - 2 / (1 + exp(2 z)), whose power may be 0 or infinite. Both
// make NaN of NaN.
Expr tanh_on_device(const Expr &z) {
    const Expr z2 = z * z, e = exp2_on_device(z * (2 * log2_e));
    const Expr p = (-0x1.9a381cp-5f * z2 + 0x1.109f78p-3f) * z2 - 0x1.55546ep-2f;
    const Expr of_large = fused_on_device(-2.f, reciprocal_on_device(1.f + e), 1.f);
    return select(magnitude_on_device(z) < 0.3125f, z + z * z2 * p, of_large);
}

Expr token_position(const Expr &i, const Expr &offset) { return cast<float>(i) + cast<float>(offset); }

// In halves of 16 bits, whose differences are exact in float.
Expr token_distance(const Expr &key, const Expr &row, const Expr &offset) {
    auto difference = [&](auto half) { return cast<float>(half(key) - half(row) - half(offset)); };
    return difference([](const Expr &x) { return x >> 16; }) * 65536.f +
           difference([](const Expr &x) { return x & 0xffff; });
}

Expr alibi(const Expr &slope, const Expr &distance, const Expr &symmetric) {
    return slope * select(symmetric != cast<uint8_t>(0), min(distance, -distance), distance);
}

Expr LogitChanges::capped(const Expr &logit, LogitUnits units) const {
    return of_cap.defined() ? of_cap : soft_capped(logit, in_units(softcap, units));
}

Expr LogitChanges::slope(const Expr &capped) const {
    if (of_slope.defined()) return of_slope;
    const Expr tanh_of = tangent(capped);
    return 1.f - tanh_of * tanh_of;
}

Expr LogitChanges::bias_of_place(const Expr &slope, const Expr &at) const { return alibi(slope, at, alibi_symmetric); }

Expr branched(const Expr &condition, const Expr &yes, const Expr &no) {
    using Internal::Call;
    return Call::make(yes.type(), Call::if_then_else, {condition, yes, no}, Call::PureIntrinsic);
}

ChangedLogit changed_logit(const Expr &product, const LogitChanges &c, LogitUnits units) {
    const auto scaled_by = [&](const Expr &factor) {
        // One factor, so that every reader of a logit rounds it alike.
        Expr in_one = !factor.defined()            ? Expr()
                      : units == LogitUnits::log16 ? strict_float(in_units(factor, units))
                                                   : in_units(factor, units);
        Expr x = factor.defined() ? product * in_one : product;
        return c.key_scale.defined() ? x * c.key_scale : x;
    };
    Expr scaled = scaled_by(c.scale), capped = scaled;
    if (c.softcap.defined()) {
        Expr tempered = !c.temperature.defined() ? scaled
                        : c.scale.defined()      ? scaled_by(query_factor(c))
                                                 : scaled * query_factor(c);
        capped = c.where_capped(c.capped(tempered, units), tempered);
    }
    Expr added = c.bias;
    if (c.distance.defined()) {
        const Expr of_place = c.bias_of_place(c.alibi_slopes, c.distance);
        added = added.defined() ? added + of_place : of_place;
    }
    Expr value = capped;
    if (added.defined()) value = capped + in_units(added, units);
    if (c.user) value = user_logit(c.user, value, units);
    return {scaled, capped, value};
}

Expr scaled_gradient(const Expr &of_value, const ChangedLogit &logit, const LogitChanges &c, const Expr &as_is) {
    Expr of_scaled = c.where_capped(of_value * c.slope(logit.capped), of_value);
    LogitChanges unscaled = c;
    unscaled.scale = Expr();
    if (c.temperature.defined()) of_scaled = of_scaled * query_factor(unscaled);
    return select(as_is, of_value, of_scaled);
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

Expr mask_allows(const Expr &mask, const Expr &form) {
    return (mask != cast(mask.type(), 0)) != (form == mask_true_hides);
}

Expr first_visible(const Expr &i, const Expr &visible_begin) { return max(i + visible_begin, 0); }

Expr end_visible(const Expr &i, const Expr &visible_end, const Expr &kv_len) { return min(i + visible_end, kv_len); }

}  // namespace heed
