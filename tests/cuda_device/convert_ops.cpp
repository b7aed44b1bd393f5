// cvt. The common conversions have loops of their own; the others go lane by lane through an exact double.
#include <cmath>
#include <limits>

#include "tests/cuda_device/formats.h"
#include "tests/cuda_device/lane_ops.h"

namespace heed::device {
namespace {

enum class Rounding : uint8_t { none, nearest, zero, down, up };

// How one lane is converted; travels as a 32-bit constant.
struct Conversion {
    Type to, from;
    int register_bits = 0;  // of the result
    Rounding rounding = Rounding::none;
    bool to_integral = false, saturate = false, ftz = false;
};

uint32_t encode(const Conversion &c) {
    const auto type = [](Type t) { return static_cast<uint32_t>(t.kind) << 3 | __builtin_ctz(t.bits) % 8; };
    return type(c.to) | type(c.from) << 8 | __builtin_ctz(c.register_bits) << 16 |
           static_cast<uint32_t>(c.rounding) << 20 | uint32_t(c.to_integral) << 24 | uint32_t(c.saturate) << 25 |
           uint32_t(c.ftz) << 26;
}

Conversion decode(uint32_t bits) {
    const auto type = [](uint32_t t) { return Type{static_cast<Kind>(t >> 3 & 31), 1 << (t & 7)}; };
    Conversion c;
    c.to = type(bits & 0xff), c.from = type(bits >> 8 & 0xff);
    c.register_bits = 1 << (bits >> 16 & 15);
    c.rounding = static_cast<Rounding>(bits >> 20 & 15);
    c.to_integral = (bits >> 24 & 1) != 0, c.saturate = (bits >> 25 & 1) != 0, c.ftz = (bits >> 26 & 1) != 0;
    return c;
}

uint64_t low_bits(uint64_t value, int bits) { return bits >= 64 ? value : value & ((1ull << bits) - 1); }

// The source integer, extended to 64 bits.
uint64_t integer_source(uint64_t lane, Type type) {
    const uint64_t low = low_bits(lane, type.bits);
    const bool negative = type.is_signed() && ((low >> (type.bits - 1)) & 1) != 0;
    return negative && type.bits < 64 ? low | ~0ull << type.bits : low;
}

double integral(double value, Rounding rounding) {
    switch (rounding) {
    case Rounding::zero:
        return std::trunc(value);
    case Rounding::down:
        return std::floor(value);
    case Rounding::up:
        return std::ceil(value);
    default:
        return std::nearbyint(value);
    }
}

uint64_t integer_to_integer(uint64_t lane, const Conversion &c) {
    uint64_t value = integer_source(lane, c.from);
    if (c.saturate) {
        const bool negative = c.from.is_signed() && static_cast<int64_t>(value) < 0;
        const uint64_t highest = c.to.is_signed() ? (1ull << (c.to.bits - 1)) - 1 : low_bits(~0ull, c.to.bits);
        const uint64_t lowest = c.to.is_signed() ? ~highest : 0;
        if (!negative && value > highest) value = highest;
        if (negative && (!c.to.is_signed() || static_cast<int64_t>(value) < static_cast<int64_t>(lowest)))
            value = lowest;
    }
    return low_bits(integer_source(value, c.to), c.register_bits);
}

// Always saturates, as PTX says of conversions to integers.
uint64_t float_to_integer(double value, const Conversion &c) {
    const bool is_signed = c.to.is_signed();
    if (value != value) return c.from.bits == 64 || c.to.bits == 64 ? 1ull << (c.to.bits - 1) : 0;
    const double rounded = integral(value, c.rounding);
    const double limit = std::ldexp(1.0, is_signed ? c.to.bits - 1 : c.to.bits);
    const double lowest = is_signed ? -limit : 0;
    uint64_t result = 0;
    if (rounded >= limit)
        result = is_signed ? (1ull << (c.to.bits - 1)) - 1 : low_bits(~0ull, c.to.bits);
    else if (rounded <= lowest)
        result = is_signed ? ~0ull << (c.to.bits - 1) : 0;
    else
        result = is_signed ? static_cast<uint64_t>(static_cast<int64_t>(rounded)) : static_cast<uint64_t>(rounded);
    return low_bits(result, c.register_bits);
}

// An integer as a double: to odd where it does not fit, which later roundings to at most 51 bits do not notice.
double integer_to_double(uint64_t value, Type type) {
    const bool negative = type.is_signed() && static_cast<int64_t>(value) < 0;
    uint64_t magnitude = negative ? 0 - value : value;
    if (magnitude >> 53 != 0) magnitude = (magnitude & ~0x7ffull) | ((magnitude & 0x7ff) != 0 ? 0x800 : 0);
    const double result = static_cast<double>(magnitude);
    return negative ? -result : result;
}

float step(float value, Rounding rounding, double exact) {
    const float infinity = std::numeric_limits<float>::infinity();
    const double error = static_cast<double>(value) - exact;
    const bool down = rounding == Rounding::down || (rounding == Rounding::zero && exact > 0);
    const bool up = rounding == Rounding::up || (rounding == Rounding::zero && exact < 0);
    if (down && error > 0) return std::nextafter(value, -infinity);
    if (up && error < 0) return std::nextafter(value, infinity);
    return value;
}

uint64_t narrow(double value, const Conversion &c) {
    if (c.saturate) value = value > 0 ? (value < 1 ? value : 1) : 0;
    if (c.to.is(Kind::real, 64)) return to_lane(canonical(value));
    if (c.to.bits == 16) {
        const float odd = round_to_odd(value);
        return c.to.kind == Kind::brain ? float_to_brain(odd) : float_to_half(odd);
    }
    float result = canonical(static_cast<float>(value));
    if (value == value && !std::isinf(value)) result = step(result, c.rounding, value);
    return to_lane(c.ftz ? flush(result) : result);
}

double float_source(uint64_t lane, const Conversion &c) {
    if (c.from.bits == 64) return from_lane<double>(lane);
    const auto low = static_cast<uint32_t>(lane);
    if (c.from.kind == Kind::brain) return static_cast<double>(brain_to_float(static_cast<uint16_t>(low)));
    if (c.from.bits == 16) return static_cast<double>(half_to_float(static_cast<uint16_t>(low)));
    const float value = from_lane<float>(low);
    return static_cast<double>(c.ftz ? flush(value) : value);
}

uint64_t convert(uint64_t lane, const Conversion &c) {
    if (c.from.integer()) {
        if (c.to.integer()) return integer_to_integer(lane, c);
        const uint64_t value = integer_source(lane, c.from);
        if (c.to.bits == 64)
            return to_lane(c.from.is_signed() ? static_cast<double>(static_cast<int64_t>(value))
                                              : static_cast<double>(value));
        return narrow(integer_to_double(value, c.from), c);
    }
    const double value = float_source(lane, c);
    if (c.to.integer()) return float_to_integer(value, c);
    return narrow(c.to_integral ? integral(value, c.rounding) : value, c);
}

template <typename To, typename From>
void run(void *result, const void *a, const void *descriptor, const void *) {
    const Conversion c = decode(*static_cast<const uint32_t *>(descriptor));
    auto *to = static_cast<To *>(result);
    const auto *from = static_cast<const From *>(a);
    for (int i = 0; i < warp_size; i++) to[i] = static_cast<To>(convert(from[i], c));
}

template <typename To, typename From>
To cast(From value) {
    return static_cast<To>(value);
}
int32_t float_to_int(float value) {
    const double limited = std::fmin(std::fmax(static_cast<double>(value), -2147483648.0), 2147483647.0);
    return value != value ? 0 : static_cast<int32_t>(limited);
}
float widen_half(uint16_t value) { return canonical(half_to_float(value)); }
template <uint16_t (*f)(float)>
uint32_t narrow_pair(float high, float low) {
    return static_cast<uint32_t>(f(high)) << 16 | f(low);
}

// Conversions that kernels do all the time. Widths of registers are those of the types.
LaneOp find_common(const Conversion &c) {
    const auto is = [&c](Kind to, int to_bits, Kind from, int from_bits) {
        return c.to.is(to, to_bits) && c.from.is(from, from_bits);
    };
    constexpr Kind u = Kind::unsigned_int, s = Kind::signed_int, f = Kind::real;
    if (c.saturate || c.ftz) return nullptr;
    if (c.rounding == Rounding::none) {
        if (is(u, 32, u, 64)) return lanes<&cast<uint32_t, uint64_t>>;
        if (is(u, 64, u, 32)) return lanes<&cast<uint64_t, uint32_t>>;
        if (is(s, 64, s, 32)) return lanes<&cast<int64_t, int32_t>>;
        if (is(u, 16, u, 32)) return lanes<&cast<uint16_t, uint32_t>>;
        if (is(u, 32, u, 16)) return lanes<&cast<uint32_t, uint16_t>>;
        if (is(s, 32, s, 16)) return lanes<&cast<int32_t, int16_t>>;
        if (is(f, 32, f, 16)) return lanes<&widen_half>;
    }
    if (c.rounding == Rounding::nearest && !c.to_integral) {
        if (is(f, 16, f, 32)) return lanes<&float_to_half>;
        if (is(Kind::brain, 16, f, 32)) return lanes<&float_to_brain>;
        if (is(f, 32, s, 32)) return lanes<&cast<float, int32_t>>;
        if (is(f, 32, u, 32)) return lanes<&cast<float, uint32_t>>;
    }
    if (c.rounding == Rounding::zero && c.to_integral && is(s, 32, f, 32)) return lanes<&float_to_int>;
    return nullptr;
}

Rounding take_rounding(Opcode &opcode, bool *to_integral) {
    static const struct {
        const char *name;
        Rounding rounding;
        bool to_integral;
    } roundings[] = {{"rn", Rounding::nearest, false}, {"rz", Rounding::zero, false},    {"rm", Rounding::down, false},
                     {"rp", Rounding::up, false},      {"rni", Rounding::nearest, true}, {"rzi", Rounding::zero, true},
                     {"rmi", Rounding::down, true},    {"rpi", Rounding::up, true}};
    for (const auto &r : roundings) {
        if (opcode.take(r.name)) {
            *to_integral = r.to_integral;
            return r.rounding;
        }
    }
    return Rounding::none;
}

// Whether PTX has it, and we round it right: conversions that may lose bits name their rounding, others do not.
bool valid(const Conversion &c) {
    const Type to = c.to, from = c.from;
    const bool both_float = to.floating() && from.floating();
    if (c.ftz && !to.is(Kind::real, 32) && !from.is(Kind::real, 32)) return false;
    if (to.integer() && from.integer()) return c.rounding == Rounding::none && to.number() && from.number();
    if (to.integer()) return to.number() && c.rounding != Rounding::none && c.to_integral;
    if (from.integer()) {
        const bool any_rounding = to.is(Kind::real, 32);
        return from.number() && !c.to_integral && !c.saturate &&
               (c.rounding == Rounding::nearest || (any_rounding && c.rounding != Rounding::none));
    }
    if (!both_float) return false;
    if (to.kind == from.kind && to.bits == from.bits) return c.rounding == Rounding::none || c.to_integral;
    if (to.bits > from.bits) return c.rounding == Rounding::none;
    const bool any_rounding = to.is(Kind::real, 32);
    return !c.to_integral && (c.rounding == Rounding::nearest || (any_rounding && c.rounding != Rounding::none));
}

LaneOpInfo find_pair(Opcode &opcode, Type to, Type from) {
    if (!from.is(Kind::real, 32) || !opcode.take("rn")) return {};
    const LaneOp op =
        to.kind == Kind::brain_pair ? lanes<&narrow_pair<&float_to_brain>> : lanes<&narrow_pair<&float_to_half>>;
    return {op, to, 2, {from, from, {}}, false, false, false, 0};
}

}  // namespace

LaneOpInfo find_convert_op(Opcode &opcode, int result_bits, int source_bits) {
    Conversion c;
    c.from = opcode.take_type();
    c.to = opcode.take_type();
    if (c.to.pair()) return find_pair(opcode, c.to, c.from);
    c.rounding = take_rounding(opcode, &c.to_integral);
    c.ftz = opcode.take("ftz");
    c.saturate = opcode.take("sat");
    c.register_bits = result_bits;
    LaneOpInfo info{nullptr, c.to, 1, {c.from, {}, {}}, false, true, false, 0};
    const bool fits = result_bits >= c.to.bits && source_bits >= c.from.bits && result_bits >= 16;
    if (!fits || !valid(c)) return info;
    // f16 and bf16 need registers of their width, as f32 and f64 do.
    if ((c.to.floating() && result_bits != c.to.bits) || (c.from.floating() && source_bits != c.from.bits)) return info;
    if (result_bits == c.to.bits && source_bits == c.from.bits) info.op = find_common(c);
    if (info.op != nullptr) return info;
    info.has_descriptor = true;
    info.descriptor = encode(c);
    const bool wide_to = result_bits == 64, wide_from = source_bits == 64;
    info.op = wide_to ? (wide_from ? &run<uint64_t, uint64_t> : &run<uint64_t, uint32_t>)
                      : (wide_from ? &run<uint32_t, uint64_t> : &run<uint32_t, uint32_t>);
    return info;
}

}  // namespace heed::device
