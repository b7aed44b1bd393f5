// Arithmetic on f16 and bf16, single and in pairs: computed in double, rounded once.
#include "tests/cuda_device/formats.h"
#include "tests/cuda_device/lane_ops.h"

namespace heed::device {
namespace {

struct Half {
    static double widen(uint16_t bits) { return static_cast<double>(half_to_float(bits)); }
    static uint16_t narrow(double value) { return float_to_half(round_to_odd(value)); }
    static bool subnormal(uint16_t bits) { return (bits & 0x7c00) == 0; }
};

struct Brain {
    static double widen(uint16_t bits) { return static_cast<double>(brain_to_float(bits)); }
    static uint16_t narrow(double value) { return float_to_brain(round_to_odd(value)); }
    static bool subnormal(uint16_t bits) { return (bits & 0x7f80) == 0; }
};

template <typename F, bool ftz>
uint16_t flush(uint16_t bits) {
    return ftz && F::subnormal(bits) ? bits & 0x8000 : bits;
}
// Sums and products of two such values are exact in double, or far from any tie.
template <typename F, bool ftz>
uint16_t fma(uint16_t a, uint16_t b, uint16_t c) {
    const double product = F::widen(flush<F, ftz>(a)) * F::widen(flush<F, ftz>(b));
    return flush<F, ftz>(F::narrow(add_to_odd(product, F::widen(flush<F, ftz>(c)))));
}
template <typename F, bool ftz>
uint16_t add(uint16_t a, uint16_t b) {
    return flush<F, ftz>(F::narrow(add_to_odd(F::widen(flush<F, ftz>(a)), F::widen(flush<F, ftz>(b)))));
}
template <typename F, bool ftz>
uint16_t sub(uint16_t a, uint16_t b) {
    return flush<F, ftz>(F::narrow(add_to_odd(F::widen(flush<F, ftz>(a)), -F::widen(flush<F, ftz>(b)))));
}
template <typename F, bool ftz>
uint16_t mul(uint16_t a, uint16_t b) {
    return flush<F, ftz>(F::narrow(F::widen(flush<F, ftz>(a)) * F::widen(flush<F, ftz>(b))));
}
template <typename F, bool ftz>
uint16_t min(uint16_t a, uint16_t b) {
    const double x = F::widen(flush<F, ftz>(a)), y = F::widen(flush<F, ftz>(b));
    const bool first = x < y || (x == y && (a & 0x8000) != 0);
    if (x != x) return y != y ? half_nan_bits : flush<F, ftz>(b);
    return flush<F, ftz>(y != y || first ? a : b);
}
template <typename F, bool ftz>
uint16_t max(uint16_t a, uint16_t b) {
    const double x = F::widen(flush<F, ftz>(a)), y = F::widen(flush<F, ftz>(b));
    const bool first = x > y || (x == y && (a & 0x8000) == 0);
    if (x != x) return y != y ? half_nan_bits : flush<F, ftz>(b);
    return flush<F, ftz>(y != y || first ? a : b);
}
template <typename F, bool ftz>
uint16_t negate(uint16_t a) {
    return flush<F, ftz>(a) ^ 0x8000;
}
template <typename F, bool ftz>
uint16_t absolute(uint16_t a) {
    return flush<F, ftz>(a) & 0x7fff;
}

// The same function on both halves of a register.
template <uint16_t (*f)(uint16_t)>
uint32_t pair1(uint32_t a) {
    return f(static_cast<uint16_t>(a)) | static_cast<uint32_t>(f(static_cast<uint16_t>(a >> 16))) << 16;
}
template <uint16_t (*f)(uint16_t, uint16_t)>
uint32_t pair2(uint32_t a, uint32_t b) {
    const uint32_t high = f(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16));
    return f(static_cast<uint16_t>(a), static_cast<uint16_t>(b)) | high << 16;
}
template <uint16_t (*f)(uint16_t, uint16_t, uint16_t)>
uint32_t pair3(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t high =
        f(static_cast<uint16_t>(a >> 16), static_cast<uint16_t>(b >> 16), static_cast<uint16_t>(c >> 16));
    return f(static_cast<uint16_t>(a), static_cast<uint16_t>(b), static_cast<uint16_t>(c)) | high << 16;
}

template <typename F, bool ftz>
LaneOp pick(const std::string &name, bool pair, int num_sources) {
    if (num_sources == 3) return name != "fma" ? nullptr : pair ? lanes<&pair3<&fma<F, ftz>>> : lanes<&fma<F, ftz>>;
    if (num_sources == 1) {
        if (name == "neg") return pair ? lanes<&pair1<&negate<F, ftz>>> : lanes<&negate<F, ftz>>;
        if (name == "abs") return pair ? lanes<&pair1<&absolute<F, ftz>>> : lanes<&absolute<F, ftz>>;
        return nullptr;
    }
    if (name == "add") return pair ? lanes<&pair2<&add<F, ftz>>> : lanes<&add<F, ftz>>;
    if (name == "sub") return pair ? lanes<&pair2<&sub<F, ftz>>> : lanes<&sub<F, ftz>>;
    if (name == "mul") return pair ? lanes<&pair2<&mul<F, ftz>>> : lanes<&mul<F, ftz>>;
    if (name == "min") return pair ? lanes<&pair2<&min<F, ftz>>> : lanes<&min<F, ftz>>;
    if (name == "max") return pair ? lanes<&pair2<&max<F, ftz>>> : lanes<&max<F, ftz>>;
    return nullptr;
}

}  // namespace

LaneOpInfo find_half_op(Opcode &opcode) {
    const std::string name = opcode.name();
    const Type type = opcode.take_type();
    const bool brain = type.kind == Kind::brain || type.kind == Kind::brain_pair;
    if (!type.pair() && !(type.floating() && type.bits == 16)) return {};
    const bool ftz = opcode.take("ftz");
    if (name == "fma" || name == "add" || name == "sub" || name == "mul") {
        // Only fma must name its rounding.
        if (!opcode.take("rn") && name == "fma") return {};
    }
    const int num_sources = name == "fma" ? 3 : name == "neg" || name == "abs" ? 1 : 2;
    if (brain && ftz) return {};
    const LaneOp op = brain ? pick<Brain, false>(name, type.pair(), num_sources)
                      : ftz ? pick<Half, true>(name, type.pair(), num_sources)
                            : pick<Half, false>(name, type.pair(), num_sources);
    return {op, type, num_sources, {type, type, type}, false, false, false, 0};
}

}  // namespace heed::device
