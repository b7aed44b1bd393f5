#include "element.h"

namespace heed {

using namespace Halide;

namespace {

Expr bits(const Expr &x) { return reinterpret<uint32_t>(x); }
Expr number(uint32_t x) { return Expr(x); }

constexpr uint32_t sign_bit = 0x80000000u, infinity = 0x7f800000u;

// No conversion compares with infinity or tests for NaN: of the result of an operation in the default float mode the
// compiler assumes that it is neither. Limits of integers do the same. x is a result of arithmetic: its NaNs are quiet.

// The carry of the rounding moves into the exponent by itself; the limit keeps it from passing through a NaN.
Expr bf16_of(const Expr &x) {
    Expr magnitude = bits(x) & ~number(sign_bit), sign = (bits(x) >> 16) & number(0x8000);
    Expr limited = min(magnitude, number(0x7fff0000));
    return cast<uint16_t>(((limited + number(0x7fff) + ((limited >> 16) & number(1))) >> 16) | sign);
}

// The exponent's bias moves from 15 to 127 by an exact product, which makes subnormal numbers normal too.
Expr float_of_f16(const Expr &stored) {
    Expr half = cast<uint32_t>(stored), magnitude = (half & number(0x7fff)) << 13;
    Expr scaled = bits(strict_float(reinterpret<float>(magnitude) * 0x1p112f));
    Expr is_finite = (half & number(0x7c00)) != number(0x7c00);
    return reinterpret<float>(select(is_finite, scaled, magnitude | number(infinity)) | (half & number(0x8000)) << 16);
}

// Below 2^-14 the units are those of 0.5f: an addition rounds to them, half to even.
Expr f16_of(const Expr &x) {
    Expr magnitude = bits(x) & ~number(sign_bit), sign = (bits(x) >> 16) & number(0x8000);
    Expr normal = (magnitude + number(0xfff) + ((magnitude >> 13) & number(1)) - number(112u << 23)) >> 13;
    Expr subnormal = bits(strict_float(reinterpret<float>(magnitude) + 0.5f)) - number(0x3f000000);
    Expr payload = (max(magnitude, number(infinity)) - number(infinity)) >> 13;  // 0 but for NaN
    Expr half = select(magnitude >= number(0x477ff000), number(0x7c00) | payload, magnitude < number(0x38800000),
                       subnormal, normal);
    return cast<uint16_t>(half | sign);
}

}  // namespace

Element element_of(const std::string &name, bool has_f16c) {
    if (name == "f16") return has_f16c ? Element::f16 : Element::f16_by_integers;
    return name == "bf16" ? Element::bf16 : Element::f32;
}

Type stored_type(Element element) { return element == Element::f32 ? Type(Float(32)) : Type(UInt(16)); }

Expr to_float(Element element, const Expr &stored) {
    switch (element) {
    case Element::f16:
        return cast<float>(reinterpret(Float(16), stored));
    case Element::f16_by_integers:
        return float_of_f16(stored);
    case Element::bf16:
        return reinterpret<float>(cast<uint32_t>(stored) << 16);
    default:
        return stored;
    }
}

Expr from_float(Element element, const Expr &x) {
    switch (element) {
    case Element::f16:
        return reinterpret<uint16_t>(cast(Float(16), x));
    case Element::f16_by_integers:
        return f16_of(x);
    case Element::bf16:
        return bf16_of(x);
    default:
        return x;
    }
}

}  // namespace heed
