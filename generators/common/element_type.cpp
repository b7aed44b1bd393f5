#include "generators/common/element_type.h"

namespace heed {

using namespace Halide;

const char *name_of(ElementType type) {
    switch (type) {
    case ElementType::f32:
        return "f32";
    case ElementType::f16:
        return "f16";
    case ElementType::bf16:
        return "bf16";
    case ElementType::i8:
        return "i8";
    }
    return "?";
}

ElementType element_type_of(const std::string &name) {
    for (ElementType type : {ElementType::f16, ElementType::bf16, ElementType::i8}) {
        if (name == name_of(type)) return type;
    }
    return ElementType::f32;
}

Type stored_type(ElementType type) {
    switch (type) {
    case ElementType::f32:
        return Float(32);
    case ElementType::i8:
        return Int(8);
    default:
        return UInt(16);
    }
}

Expr to_float(ElementType type, const Expr &stored) {
    switch (type) {
    case ElementType::f32:
        return stored;
    case ElementType::f16:
        return cast<float>(reinterpret(Float(16), stored));
    case ElementType::bf16:
        return reinterpret<float>(cast<uint32_t>(stored) << 16);
    case ElementType::i8:
        return cast<float>(stored);
    }
    return Expr();
}

Expr bits(const Expr &x) { return reinterpret<int32_t>(x); }

// No test for NaN here: of the result of an operation in the default float mode the compiler assumes that it is none.
// Limits of integers do the same. The NaNs of arithmetic are quiet.
Expr from_float(ElementType type, const Expr &value) {
    Expr bits = reinterpret<uint32_t>(value), magnitude = bits & Expr(0x7fffffffu);
    if (type == ElementType::f16) {
        // (The conversion in integers, where there is no instruction, turns NaN into infinity.) 0 except for NaN:
        Expr payload = (max(magnitude, Expr(0x7f800000u)) - Expr(0x7f800000u)) >> 13;
        return reinterpret<uint16_t>(cast(Float(16), value)) | cast<uint16_t>(payload);
    }
    if (type == ElementType::bf16) {
        // The carry moves into the exponent by itself; the limit keeps it from passing through a NaN.
        Expr limited = min(magnitude, Expr(0x7fff0000u));
        Expr nearest = (limited + ((limited >> 16) & 1) + 0x7fff) >> 16;
        return cast<uint16_t>(nearest | ((bits >> 16) & Expr(0x8000u)));
    }
    return value;
}

}  // namespace heed
