// Arithmetic on f32 and f64. Results are those of IEEE arithmetic, one rounding to nearest each; .approx functions are
// the exact value rounded, which a chip may miss by a few units in the last place.
#include <cmath>

#include "tests/cuda_device/formats.h"
#include "tests/cuda_device/lane_ops.h"

namespace heed::device {
namespace {

template <bool ftz, typename T>
T in(T value) {
    if constexpr (ftz) return flush(value);
    return value;
}
template <bool ftz, typename T>
T out(T value) {
    if constexpr (ftz) value = flush(value);
    return canonical(value);
}

template <typename T, bool ftz>
T add(T a, T b) {
    return out<ftz>(in<ftz>(a) + in<ftz>(b));
}
template <typename T, bool ftz>
T sub(T a, T b) {
    return out<ftz>(in<ftz>(a) - in<ftz>(b));
}
template <typename T, bool ftz>
T mul(T a, T b) {
    return out<ftz>(in<ftz>(a) * in<ftz>(b));
}
template <typename T, bool ftz>
T div(T a, T b) {
    return out<ftz>(in<ftz>(a) / in<ftz>(b));
}
// For divisors above 2^126 a chip returns 0, or NaN for infinity over them.
template <typename T, bool ftz>
T div_approx(T a, T b) {
    const T large = std::fabs(b) > T(0x1p126) && !std::isinf(b) ? T(0) * a : T(1);
    return large == T(1) ? div<T, ftz>(a, b) : canonical(std::copysign(T(1), b) * large);
}
template <typename T, bool ftz>
T fma(T a, T b, T c) {
    if constexpr (sizeof(T) == 4) return out<ftz>(__builtin_fmaf(in<ftz>(a), in<ftz>(b), in<ftz>(c)));
    return out<ftz>(__builtin_fma(in<ftz>(a), in<ftz>(b), in<ftz>(c)));
}
template <typename T, bool ftz>
T negate(T a) {
    return -in<ftz>(a);
}
template <typename T, bool ftz>
T absolute(T a) {
    return std::fabs(in<ftz>(a));
}
// The one that is a number; -0 is less than +0.
template <typename T, bool ftz>
T min(T a, T b) {
    const T x = in<ftz>(a), y = in<ftz>(b);
    const T lesser = x < y || (x == y && std::signbit(x)) ? x : y;
    return x != x ? canonical(y) : (y != y ? x : lesser);
}
template <typename T, bool ftz>
T max(T a, T b) {
    const T x = in<ftz>(a), y = in<ftz>(b);
    const T greater = x > y || (x == y && !std::signbit(x)) ? x : y;
    return x != x ? canonical(y) : (y != y ? x : greater);
}
template <typename T, bool ftz>
T min_nan(T a, T b) {
    return a != a || b != b ? canonical(a + b) : min<T, ftz>(a, b);
}
template <typename T, bool ftz>
T max_nan(T a, T b) {
    return a != a || b != b ? canonical(a + b) : max<T, ftz>(a, b);
}
template <typename T, bool ftz>
T copy_sign(T sign, T magnitude) {
    return std::copysign(magnitude, sign);
}
template <typename T, bool ftz>
T reciprocal(T a) {
    return out<ftz>(T(1) / in<ftz>(a));
}
template <typename T, bool ftz>
T square_root(T a) {
    return out<ftz>(std::sqrt(in<ftz>(a)));
}
template <bool ftz>
float reciprocal_root(float a) {
    return out<ftz>(static_cast<float>(1 / std::sqrt(static_cast<double>(in<ftz>(a)))));
}
template <bool ftz>
float exp2_approx(float a) {
    return out<ftz>(static_cast<float>(std::exp2(static_cast<double>(in<ftz>(a)))));
}
template <bool ftz>
float log2_approx(float a) {
    return out<ftz>(static_cast<float>(std::log2(static_cast<double>(in<ftz>(a)))));
}
template <bool ftz>
float sin_approx(float a) {
    return out<ftz>(static_cast<float>(std::sin(static_cast<double>(in<ftz>(a)))));
}
template <bool ftz>
float cos_approx(float a) {
    return out<ftz>(static_cast<float>(std::cos(static_cast<double>(in<ftz>(a)))));
}
float tanh_approx(float a) { return canonical(static_cast<float>(std::tanh(static_cast<double>(a)))); }

// A function of f32, f32 with .ftz, and f64.
#define HEED_PICK_FLOAT(f) pick(type, ftz, lanes<&f<float, false>>, lanes<&f<float, true>>, lanes<&f<double, false>>)

LaneOp pick(Type type, bool ftz, LaneOp f32, LaneOp f32_ftz, LaneOp f64) {
    if (type.is(Kind::real, 32)) return ftz ? f32_ftz : f32;
    return type.is(Kind::real, 64) && !ftz ? f64 : nullptr;
}

// Functions of one f32 that exist as .approx only.
LaneOp find_approx(const std::string &name, bool ftz) {
    if (name == "rsqrt") return ftz ? lanes<&reciprocal_root<true>> : lanes<&reciprocal_root<false>>;
    if (name == "ex2") return ftz ? lanes<&exp2_approx<true>> : lanes<&exp2_approx<false>>;
    if (name == "lg2") return ftz ? lanes<&log2_approx<true>> : lanes<&log2_approx<false>>;
    if (name == "sin") return ftz ? lanes<&sin_approx<true>> : lanes<&sin_approx<false>>;
    if (name == "cos") return ftz ? lanes<&cos_approx<true>> : lanes<&cos_approx<false>>;
    if (name == "tanh") return ftz ? nullptr : lanes<&tanh_approx>;
    return nullptr;
}

}  // namespace

LaneOpInfo find_float_op(Opcode &opcode) {
    const std::string name = opcode.name();
    const Type type = opcode.take_type();
    if (type.kind != Kind::real || type.bits == 16) return {};
    const bool ftz = opcode.take("ftz"), rounds = opcode.take("rn");
    const bool full = opcode.take("full"), approx = full || opcode.take("approx"), nan = opcode.take("NaN");
    LaneOpInfo info{nullptr, type, 2, {type, type, type}, false, false, false, 0};
    if (!approx && !nan) {
        if (name == "add") info.op = HEED_PICK_FLOAT(add);
        if (name == "sub") info.op = HEED_PICK_FLOAT(sub);
        if (name == "mul") info.op = HEED_PICK_FLOAT(mul);
        if (name == "div" && rounds) info.op = HEED_PICK_FLOAT(div);
        if (name == "copysign" && !rounds && !ftz) info.op = HEED_PICK_FLOAT(copy_sign);
    }
    if (name == "div" && approx && !rounds && type.bits == 32)
        info.op = full ? HEED_PICK_FLOAT(div) : HEED_PICK_FLOAT(div_approx);
    if (full && name != "div") return info;
    if (!approx && !rounds) {
        if (name == "min") info.op = nan ? HEED_PICK_FLOAT(min_nan) : HEED_PICK_FLOAT(min);
        if (name == "max") info.op = nan ? HEED_PICK_FLOAT(max_nan) : HEED_PICK_FLOAT(max);
    }
    if (info.op != nullptr) return info;
    info.num_sources = 3;
    if (name == "fma" && rounds && !approx && !nan) info.op = HEED_PICK_FLOAT(fma);
    if (info.op != nullptr) return info;
    info.num_sources = 1;
    if (nan) return info;
    if (name == "neg" && !approx && !rounds) info.op = HEED_PICK_FLOAT(negate);
    if (name == "abs" && !approx && !rounds) info.op = HEED_PICK_FLOAT(absolute);
    if (name == "rcp" && rounds != approx && (rounds || type.bits == 32)) info.op = HEED_PICK_FLOAT(reciprocal);
    if (name == "sqrt" && rounds != approx && (rounds || type.bits == 32)) info.op = HEED_PICK_FLOAT(square_root);
    if (approx && !rounds && type.bits == 32 && info.op == nullptr) info.op = find_approx(name, ftz);
    return info;
}

}  // namespace heed::device
