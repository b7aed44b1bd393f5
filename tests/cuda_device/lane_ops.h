// Operations on 32 lanes, found by opcode.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tests/cuda_device/program.h"
#include "tests/cuda_device/ptx_type.h"

#pragma GCC diagnostic ignored "-Wunknown-pragmas"  // Clang has no ivdep

namespace heed::device {

// `op` is null where the opcode is not one of these. Whatever the opcode still holds was not understood.
struct LaneOpInfo {
    LaneOp op = nullptr;
    Type result;
    int num_sources = 0;
    Type sources[3];
    bool divides = false;
    bool loose = false;           // a conversion: registers may be wider than their types
    bool has_descriptor = false;  // `descriptor` is the source after the given ones
    uint32_t descriptor = 0;
};

LaneOpInfo find_integer_op(Opcode &opcode);
LaneOpInfo find_bit_op(Opcode &opcode);
LaneOpInfo find_float_op(Opcode &opcode);
LaneOpInfo find_half_op(Opcode &opcode);
LaneOpInfo find_compare_op(Opcode &opcode);
// cvt; the widths of the registers are part of what it does.
LaneOpInfo find_convert_op(Opcode &opcode, int result_bits, int source_bits);

// Register widths in bits: copies, and pieces of 64- and 32-bit registers; null where there is no such operation.
LaneOp copy_op(int bits);
LaneOp extract_op(int whole_bits, int piece_bits, int index);
LaneOp join_op(int whole_bits);   // of two halves
LaneOp lookup_op(uint8_t table);  // lop3
LaneOp predicate_and_op(bool first_negated);
LaneOp predicate_or_op(bool first_negated);
LaneOp predicate_xor_op(bool first_negated);
LaneOp predicate_not_op();

template <typename T>
using Lane = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <typename T>
inline T from_lane(Lane<T> lane) {
    if constexpr (std::is_same_v<T, bool>) {
        return lane != 0;
    } else if constexpr (std::is_floating_point_v<T>) {
        T value;
        std::memcpy(&value, &lane, sizeof(T));
        return value;
    } else {
        return static_cast<T>(lane);
    }
}

template <typename T>
inline Lane<T> to_lane(T value) {
    if constexpr (std::is_same_v<T, bool>) {
        return value ? ~0u : 0u;
    } else if constexpr (std::is_floating_point_v<T>) {
        Lane<T> lane;
        std::memcpy(&lane, &value, sizeof(T));
        return lane;
    } else {
        return static_cast<std::make_unsigned_t<T>>(value);
    }
}

// `lanes<&f>` is the LaneOp of a function of one, two or three values. The result's register is one of the sources' or
// does not overlap them.
template <auto f>
struct Lanes;

template <typename R, typename A, R (*f)(A)>
struct Lanes<f> {
    static void run(void *result, const void *a, const void *, const void *) {
        auto *to = static_cast<Lane<R> *>(result);
        const auto *x = static_cast<const Lane<A> *>(a);
#pragma GCC ivdep
        for (int i = 0; i < warp_size; i++) to[i] = to_lane<R>(f(from_lane<A>(x[i])));
    }
};

template <typename R, typename A, typename B, R (*f)(A, B)>
struct Lanes<f> {
    static void run(void *result, const void *a, const void *b, const void *) {
        auto *to = static_cast<Lane<R> *>(result);
        const auto *x = static_cast<const Lane<A> *>(a);
        const auto *y = static_cast<const Lane<B> *>(b);
#pragma GCC ivdep
        for (int i = 0; i < warp_size; i++) to[i] = to_lane<R>(f(from_lane<A>(x[i]), from_lane<B>(y[i])));
    }
};

template <typename R, typename A, typename B, typename C, R (*f)(A, B, C)>
struct Lanes<f> {
    static void run(void *result, const void *a, const void *b, const void *c) {
        auto *to = static_cast<Lane<R> *>(result);
        const auto *x = static_cast<const Lane<A> *>(a);
        const auto *y = static_cast<const Lane<B> *>(b);
        const auto *z = static_cast<const Lane<C> *>(c);
#pragma GCC ivdep
        for (int i = 0; i < warp_size; i++)
            to[i] = to_lane<R>(f(from_lane<A>(x[i]), from_lane<B>(y[i]), from_lane<C>(z[i])));
    }
};

template <auto f>
constexpr LaneOp lanes = &Lanes<f>::run;

// The instance of a function template for an integer type of 16, 32 or 64 bits.
#define HEED_PICK_INTEGER(f, type)                                                                                     \
    pick_integer(type, lanes<&f<uint16_t>>, lanes<&f<int16_t>>, lanes<&f<uint32_t>>, lanes<&f<int32_t>>,               \
                 lanes<&f<uint64_t>>, lanes<&f<int64_t>>)

inline LaneOp pick_integer(Type type, LaneOp u16, LaneOp s16, LaneOp u32, LaneOp s32, LaneOp u64, LaneOp s64) {
    if (!type.integer()) return nullptr;
    if (type.bits == 16) return type.is_signed() ? s16 : u16;
    if (type.bits == 32) return type.is_signed() ? s32 : u32;
    if (type.bits == 64) return type.is_signed() ? s64 : u64;
    return nullptr;
}

}  // namespace heed::device
