// Bitwise operations, shifts, fields and byte permutation.
#include <array>
#include <utility>

#include "tests/cuda_device/lane_ops.h"

namespace heed::device {
namespace {

template <typename T>
T bit_and(T a, T b) {
    return a & b;
}
template <typename T>
T bit_or(T a, T b) {
    return a | b;
}
template <typename T>
T bit_xor(T a, T b) {
    return a ^ b;
}
template <typename T>
T bit_not(T a) {
    return static_cast<T>(~a);
}
template <typename T>
T logical_not(T a) {
    return a == 0;
}
template <typename T>
T shift_left(T a, uint32_t count) {
    constexpr uint32_t bits = 8 * sizeof(T);
    return count >= bits ? 0 : static_cast<T>(a << (count & (bits - 1)));
}
// Signed types keep their sign: a count past the width shifts everything out.
template <typename T>
T shift_right(T a, uint32_t count) {
    constexpr uint32_t bits = 8 * sizeof(T);
    if (std::is_signed_v<T>) return static_cast<T>(a >> (count >= bits ? bits - 1 : count));
    return count >= bits ? 0 : static_cast<T>(a >> (count & (bits - 1)));
}
template <bool wrap>
uint32_t funnel_left(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t count = wrap ? c & 31 : (c > 32 ? 32 : c);
    return static_cast<uint32_t>((((static_cast<uint64_t>(b) << 32) | a) << count) >> 32);
}
template <bool wrap>
uint32_t funnel_right(uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t count = wrap ? c & 31 : (c > 32 ? 32 : c);
    return static_cast<uint32_t>(((static_cast<uint64_t>(b) << 32) | a) >> count);
}
template <typename T>
uint32_t count_ones(T a) {
    return static_cast<uint32_t>(__builtin_popcountll(a));
}
template <typename T>
uint32_t leading_zeros(T a) {
    constexpr int bits = 8 * sizeof(T);
    return a == 0 ? bits : static_cast<uint32_t>(__builtin_clzll(a) - (64 - bits));
}
template <typename T>
T reverse(T a) {
    T reversed = 0;
    for (unsigned i = 0; i < 8 * sizeof(T); i++) reversed |= ((a >> i) & 1) << (8 * sizeof(T) - 1 - i);
    return reversed;
}
// PTX: bits from `position` on; above the field the sign, zero for unsigned types; past the top the register's sign.
template <typename T>
T extract_field(T a, uint32_t position, uint32_t length) {
    constexpr uint32_t bits = 8 * sizeof(T);
    const uint32_t p = position & 0xff, n = length & 0xff;
    if (n == 0) return 0;
    const uint32_t top = p + n - 1 > bits - 1 ? bits - 1 : p + n - 1;
    const bool negative = std::is_signed_v<T> && ((a >> top) & 1) != 0;
    using U = std::make_unsigned_t<T>;
    U field = 0;
    for (uint32_t i = 0; i < bits; i++) {
        const bool bit = i < n && p + i < bits ? ((a >> (p + i)) & 1) != 0 : negative;
        field |= static_cast<U>(bit) << i;
    }
    return static_cast<T>(field);
}
template <typename T>
T insert_field(T a, T b, uint32_t position, uint32_t length) {
    constexpr uint32_t bits = 8 * sizeof(T);
    const uint32_t p = position & 0xff, n = length & 0xff;
    T result = b;
    for (uint32_t i = 0; i < n && p + i < bits; i++) {
        const T bit = static_cast<T>(1) << (p + i);
        result = static_cast<T>((result & ~bit) | (((a >> i) & 1) != 0 ? bit : 0));
    }
    return result;
}
// The decoder joins the position and the length.
template <typename T>
T insert(T a, T b, uint64_t position_and_length) {
    return insert_field(a, b, static_cast<uint32_t>(position_and_length),
                        static_cast<uint32_t>(position_and_length >> 32));
}
uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
    const uint64_t bytes = (static_cast<uint64_t>(b) << 32) | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t nibble = selector >> (4 * i);
        const uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 0xff;
        const uint32_t sign = (byte & 0x80) != 0 ? 0xff : 0;
        result |= ((nibble & 8) != 0 ? sign : byte) << (8 * i);
    }
    return result;
}

template <uint8_t table>
uint32_t look_up(uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    if constexpr ((table & 0x01) != 0) result |= ~a & ~b & ~c;
    if constexpr ((table & 0x02) != 0) result |= ~a & ~b & c;
    if constexpr ((table & 0x04) != 0) result |= ~a & b & ~c;
    if constexpr ((table & 0x08) != 0) result |= ~a & b & c;
    if constexpr ((table & 0x10) != 0) result |= a & ~b & ~c;
    if constexpr ((table & 0x20) != 0) result |= a & ~b & c;
    if constexpr ((table & 0x40) != 0) result |= a & b & ~c;
    if constexpr ((table & 0x80) != 0) result |= a & b & c;
    return result;
}
template <size_t... tables>
constexpr std::array<LaneOp, 256> lookups(std::index_sequence<tables...>) {
    return {lanes<&look_up<tables>>...};
}

constexpr Type word = {Kind::unsigned_int, 32};

LaneOpInfo make(LaneOp op, Type result, int num_sources, Type a, Type b, Type c) {
    return {op, result, num_sources, {a, b, c}, false, false, false, 0};
}

LaneOpInfo find_shift(Opcode &opcode) {
    if (opcode.name() == "shf") {
        const bool left = opcode.take("l"), right = !left && opcode.take("r");
        const bool wrap = opcode.take("wrap"), clamp = !wrap && opcode.take("clamp");
        const Type type = opcode.take_type();
        if (!type.is(Kind::bits, 32) || !(left || right) || !(wrap || clamp)) return {};
        const LaneOp op = left ? (wrap ? lanes<&funnel_left<true>> : lanes<&funnel_left<false>>)
                               : (wrap ? lanes<&funnel_right<true>> : lanes<&funnel_right<false>>);
        return make(op, type, 3, type, type, word);
    }
    const Type type = opcode.take_type();
    if (opcode.name() == "shl")
        return make(type.kind == Kind::bits ? HEED_PICK_INTEGER(shift_left, type) : nullptr, type, 2, type, word, {});
    return make(HEED_PICK_INTEGER(shift_right, type), type, 2, type, word, {});
}

// popc, clz, brev: of 32 or 64 bits.
LaneOpInfo find_count(Opcode &opcode) {
    const std::string name = opcode.name();
    const Type type = opcode.take_type();
    if (type.kind != Kind::bits || (type.bits != 32 && type.bits != 64)) return {};
    const bool wide = type.bits == 64;
    if (name == "popc")
        return make(wide ? lanes<&count_ones<uint64_t>> : lanes<&count_ones<uint32_t>>, word, 1, type, {}, {});
    if (name == "clz")
        return make(wide ? lanes<&leading_zeros<uint64_t>> : lanes<&leading_zeros<uint32_t>>, word, 1, type, {}, {});
    return make(wide ? lanes<&reverse<uint64_t>> : lanes<&reverse<uint32_t>>, type, 1, type, {}, {});
}

LaneOpInfo find_field(Opcode &opcode) {
    const bool inserts = opcode.name() == "bfi";
    const Type type = opcode.take_type();
    if (type.bits != 32 && type.bits != 64) return {};
    if (inserts) {
        if (type.kind != Kind::bits) return {};
        return make(type.bits == 32 ? lanes<&insert<uint32_t>> : lanes<&insert<uint64_t>>, type, 3, type, type,
                    {Kind::bits, 64});
    }
    if (!type.number()) return {};
    return make(pick_integer(type, nullptr, nullptr, lanes<&extract_field<uint32_t>>, lanes<&extract_field<int32_t>>,
                             lanes<&extract_field<uint64_t>>, lanes<&extract_field<int64_t>>),
                type, 3, type, word, word);
}

}  // namespace

LaneOp lookup_op(uint8_t table) {
    static constexpr std::array<LaneOp, 256> all = lookups(std::make_index_sequence<256>());
    return all[table];
}

LaneOpInfo find_bit_op(Opcode &opcode) {
    const std::string name = opcode.name();
    if (name == "shl" || name == "shr" || name == "shf") return find_shift(opcode);
    if (name == "popc" || name == "clz" || name == "brev") return find_count(opcode);
    if (name == "bfe" || name == "bfi") return find_field(opcode);
    const Type type = opcode.take_type();
    if (name == "prmt") return make(type.is(Kind::bits, 32) ? lanes<&permute> : nullptr, type, 3, type, type, word);
    const Type pred = {Kind::predicate, 1};
    if (type.kind == Kind::predicate) {
        if (name == "and") return make(predicate_and_op(false), pred, 2, pred, pred, {});
        if (name == "or") return make(predicate_or_op(false), pred, 2, pred, pred, {});
        if (name == "xor") return make(predicate_xor_op(false), pred, 2, pred, pred, {});
        if (name == "not") return make(predicate_not_op(), pred, 1, pred, {}, {});
        return {};
    }
    if (type.kind != Kind::bits) return {};
    if (name == "and") return make(HEED_PICK_INTEGER(bit_and, type), type, 2, type, type, {});
    if (name == "or") return make(HEED_PICK_INTEGER(bit_or, type), type, 2, type, type, {});
    if (name == "xor") return make(HEED_PICK_INTEGER(bit_xor, type), type, 2, type, type, {});
    if (name == "not") return make(HEED_PICK_INTEGER(bit_not, type), type, 1, type, {}, {});
    if (name == "cnot") return make(HEED_PICK_INTEGER(logical_not, type), type, 1, type, {}, {});
    return {};
}

}  // namespace heed::device
