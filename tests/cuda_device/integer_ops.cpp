// Integer arithmetic, selection and copies.
#include "tests/cuda_device/lane_ops.h"

namespace heed::device {
namespace {

template <typename T>
using Unsigned = std::make_unsigned_t<T>;
template <typename T>
using Twice =
    std::conditional_t<sizeof(T) == 2, std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>,
                       std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                                          std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>>>;

// Wraps; 1u keeps 16-bit values from becoming int.
template <typename T>
T add(T a, T b) {
    return static_cast<T>(1u * Unsigned<T>(a) + Unsigned<T>(b));
}
template <typename T>
T sub(T a, T b) {
    return static_cast<T>(1u * Unsigned<T>(a) - Unsigned<T>(b));
}
template <typename T>
T mul_lo(T a, T b) {
    return static_cast<T>(1u * Unsigned<T>(a) * Unsigned<T>(b));
}
template <typename T>
T mul_hi(T a, T b) {
    return static_cast<T>((Twice<T>(a) * Twice<T>(b)) >> (8 * sizeof(T)));
}
template <typename T>
Twice<T> mul_wide(T a, T b) {
    return Twice<T>(a) * Twice<T>(b);
}
template <typename T>
T mad_lo(T a, T b, T c) {
    return add(mul_lo(a, b), c);
}
template <typename T>
T mad_hi(T a, T b, T c) {
    return add(mul_hi(a, b), c);
}
template <typename T>
Twice<T> mad_wide(T a, T b, Twice<T> c) {
    return add<Twice<T>>(mul_wide(a, b), c);
}
// Active lanes have been looked at: a zero here is a lane's that is not running.
template <typename T>
T div(T a, T b) {
    if (b == 0) return 0;
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return sub<T>(0, a);
    return static_cast<T>(a / b);
}
template <typename T>
T rem(T a, T b) {
    if (b == 0 || (std::is_signed_v<T> && b == static_cast<T>(-1))) return 0;
    return static_cast<T>(a % b);
}
template <typename T>
T min(T a, T b) {
    return b < a ? b : a;
}
template <typename T>
T max(T a, T b) {
    return a < b ? b : a;
}
template <typename T>
T negate(T a) {
    return sub<T>(0, a);
}
template <typename T>
T absolute(T a) {
    return std::is_signed_v<T> && a < 0 ? negate(a) : a;
}
template <typename T>
T sad(T a, T b, T c) {
    return add<T>(c, a < b ? sub(b, a) : sub(a, b));
}
template <typename T>
T select(T a, T b, bool c) {
    return c ? a : b;
}
template <typename T>
T select_by_sign(T a, T b, int32_t c) {
    return c >= 0 ? a : b;
}
template <typename T>
T select_by_float_sign(T a, T b, float c) {
    return c >= 0 ? a : b;
}
template <typename T>
T copy(T a) {
    return a;
}

template <int shift>
uint32_t low_word(uint64_t a) {
    return static_cast<uint32_t>(a >> shift);
}
template <typename T, int shift>
uint16_t half_word(T a) {
    return static_cast<uint16_t>(a >> shift);
}
uint64_t join_words(uint32_t a, uint32_t b) { return a | static_cast<uint64_t>(b) << 32; }
uint32_t join_halves(uint16_t a, uint16_t b) { return a | static_cast<uint32_t>(b) << 16; }

template <bool negated>
bool predicate_and(bool a, bool b) {
    return (a != negated) && b;
}
template <bool negated>
bool predicate_or(bool a, bool b) {
    return (a != negated) || b;
}
template <bool negated>
bool predicate_xor(bool a, bool b) {
    return (a != negated) != b;
}
bool predicate_not(bool a) { return !a; }

template <typename A>
int32_t dot_bytes(uint32_t a, uint32_t b, int32_t c, bool b_signed) {
    uint32_t sum = static_cast<uint32_t>(c);
    for (int i = 0; i < 4; i++) {
        const int32_t x = static_cast<A>(a >> (8 * i));
        const int32_t y = b_signed ? int32_t(int8_t(b >> (8 * i))) : int32_t(uint8_t(b >> (8 * i)));
        sum += static_cast<uint32_t>(x * y);
    }
    return static_cast<int32_t>(sum);
}
template <typename A, bool b_signed>
int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
    return dot_bytes<A>(a, b, c, b_signed);
}

Type doubled(Type type) { return {type.kind, 2 * type.bits}; }

LaneOpInfo same_type(LaneOp op, Type type, int num_sources) {
    return {op, type, num_sources, {type, type, type}, false, false, false, 0};
}

LaneOpInfo find_multiply(Opcode &opcode) {
    const bool adds = opcode.name() == "mad";
    const bool lo = opcode.take("lo"), hi = !lo && opcode.take("hi"), wide = !lo && !hi && opcode.take("wide");
    const Type type = opcode.take_type();
    if (!type.number()) return {};
    if (lo) return same_type(adds ? HEED_PICK_INTEGER(mad_lo, type) : HEED_PICK_INTEGER(mul_lo, type), type, 2 + adds);
    if (hi) return same_type(adds ? HEED_PICK_INTEGER(mad_hi, type) : HEED_PICK_INTEGER(mul_hi, type), type, 2 + adds);
    if (!wide || type.bits == 64) return {};
    const LaneOp mul = pick_integer(type, lanes<&mul_wide<uint16_t>>, lanes<&mul_wide<int16_t>>,
                                    lanes<&mul_wide<uint32_t>>, lanes<&mul_wide<int32_t>>, nullptr, nullptr);
    const LaneOp mad = pick_integer(type, lanes<&mad_wide<uint16_t>>, lanes<&mad_wide<int16_t>>,
                                    lanes<&mad_wide<uint32_t>>, lanes<&mad_wide<int32_t>>, nullptr, nullptr);
    return {adds ? mad : mul, doubled(type), 2 + adds, {type, type, doubled(type)}, false, false, false, 0};
}

LaneOp pick_bits(int bits, LaneOp b16, LaneOp b32, LaneOp b64) {
    return bits == 16 ? b16 : bits == 32 ? b32 : bits == 64 ? b64 : nullptr;
}

LaneOpInfo find_selection(Opcode &opcode) {
    if (opcode.name() == "selp") {
        const Type type = opcode.take_type();
        const LaneOp op =
            pick_bits(type.bits, lanes<&select<uint16_t>>, lanes<&select<uint32_t>>, lanes<&select<uint64_t>>);
        return {op, type, 3, {type, type, {Kind::predicate, 1}}, false, false, false, 0};
    }
    const Type selector = opcode.take_type(), type = opcode.take_type();
    LaneOpInfo info{nullptr, type, 3, {type, type, selector}, false, false, false, 0};
    if (selector.is(Kind::signed_int, 32))
        info.op = pick_bits(type.bits, lanes<&select_by_sign<uint16_t>>, lanes<&select_by_sign<uint32_t>>,
                            lanes<&select_by_sign<uint64_t>>);
    if (selector.is(Kind::real, 32))
        info.op = pick_bits(type.bits, lanes<&select_by_float_sign<uint16_t>>, lanes<&select_by_float_sign<uint32_t>>,
                            lanes<&select_by_float_sign<uint64_t>>);
    return info;
}

LaneOpInfo find_dot(Opcode &opcode) {
    const Type b = opcode.take_type(), a = opcode.take_type();
    if (!a.number() || !b.number() || a.bits != 32 || b.bits != 32) return {};
    const LaneOp op = a.is_signed() ? (b.is_signed() ? lanes<&dp4a<int8_t, true>> : lanes<&dp4a<int8_t, false>>)
                                    : (b.is_signed() ? lanes<&dp4a<uint8_t, true>> : lanes<&dp4a<uint8_t, false>>);
    const Type sum = {Kind::signed_int, 32};
    return {op, sum, 3, {a, b, sum}, false, false, false, 0};
}

}  // namespace

LaneOpInfo find_integer_op(Opcode &opcode) {
    const std::string &name = opcode.name();
    if (name == "mul" || name == "mad") return find_multiply(opcode);
    if (name == "selp" || name == "slct") return find_selection(opcode);
    if (name == "dp4a") return find_dot(opcode);
    const Type type = opcode.take_type();
    if (!type.number()) return {};
    if (name == "add") return same_type(HEED_PICK_INTEGER(add, type), type, 2);
    if (name == "sub") return same_type(HEED_PICK_INTEGER(sub, type), type, 2);
    if (name == "min") return same_type(HEED_PICK_INTEGER(min, type), type, 2);
    if (name == "max") return same_type(HEED_PICK_INTEGER(max, type), type, 2);
    if (name == "sad") return same_type(HEED_PICK_INTEGER(sad, type), type, 3);
    if (name == "neg" && type.is_signed()) return same_type(HEED_PICK_INTEGER(negate, type), type, 1);
    if (name == "abs" && type.is_signed()) return same_type(HEED_PICK_INTEGER(absolute, type), type, 1);
    LaneOpInfo info = same_type(nullptr, type, 2);
    info.divides = true;
    if (name == "div") info.op = HEED_PICK_INTEGER(div, type);
    if (name == "rem") info.op = HEED_PICK_INTEGER(rem, type);
    return info;
}

LaneOp copy_op(int bits) {
    return bits == 1 ? lanes<&copy<uint32_t>>
                     : pick_bits(bits, lanes<&copy<uint32_t>>, lanes<&copy<uint32_t>>, lanes<&copy<uint64_t>>);
}

LaneOp extract_op(int whole_bits, int piece_bits, int index) {
    static const LaneOp from_64[] = {lanes<&half_word<uint64_t, 0>>, lanes<&half_word<uint64_t, 16>>,
                                     lanes<&half_word<uint64_t, 32>>, lanes<&half_word<uint64_t, 48>>};
    if (whole_bits == 64 && piece_bits == 32) return index == 0 ? lanes<&low_word<0>> : lanes<&low_word<32>>;
    if (whole_bits == 64 && piece_bits == 16) return from_64[index];
    if (whole_bits == 32 && piece_bits == 16)
        return index == 0 ? lanes<&half_word<uint32_t, 0>> : lanes<&half_word<uint32_t, 16>>;
    return nullptr;
}

LaneOp join_op(int whole_bits) {
    return whole_bits == 64 ? lanes<&join_words> : whole_bits == 32 ? lanes<&join_halves> : nullptr;
}

LaneOp predicate_and_op(bool first_negated) {
    return first_negated ? lanes<&predicate_and<true>> : lanes<&predicate_and<false>>;
}
LaneOp predicate_or_op(bool first_negated) {
    return first_negated ? lanes<&predicate_or<true>> : lanes<&predicate_or<false>>;
}
LaneOp predicate_xor_op(bool first_negated) {
    return first_negated ? lanes<&predicate_xor<true>> : lanes<&predicate_xor<false>>;
}
LaneOp predicate_not_op() { return lanes<&predicate_not>; }

}  // namespace heed::device
