#include "element_type.h"

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

Expr from_float(ElementType type, const Expr &value) {
    if (type == ElementType::f16) {
        // (The conversion in integers, where there is no instruction, turns NaN into infinity.)
        Expr is_nan = (reinterpret<uint32_t>(value) & 0x7fffffff) > 0x7f800000;
        return select(is_nan, cast<uint16_t>(0x7e00), reinterpret<uint16_t>(cast(Float(16), value)));
    }
    if (type == ElementType::bf16) {
        Expr bits = reinterpret<uint32_t>(value), high = bits >> 16;
        Expr nearest = (bits + (high & 1) + 0x7fff) >> 16;
        return cast<uint16_t>(select((bits & 0x7fffffff) > 0x7f800000, high | 0x40, nearest));
    }
    return value;
}

}  // namespace heed
