// The bits of f16 and bf16, and how values are rounded to them.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <cstring>

namespace heed::device {

inline uint32_t float_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

inline float bits_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

constexpr uint32_t nan_bits = 0x7fffffff;  // what every f32 instruction returns for NaN
constexpr uint16_t half_nan_bits = 0x7fff;

inline float canonical(float value) { return value != value ? bits_float(nan_bits) : value; }
inline double canonical(double value) { return value != value ? __builtin_nan("") : value; }

// Subnormal values become zeros of their sign.
inline float flush(float value) {
    const uint32_t bits = float_bits(value);
    return bits_float((bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits);
}

inline float half_to_float(uint16_t half) { return static_cast<float>(Eigen::numext::bit_cast<Eigen::half>(half)); }

inline float brain_to_float(uint16_t brain) { return bits_float(static_cast<uint32_t>(brain) << 16); }

// Both to the nearest, ties to even.
inline uint16_t float_to_half(float value) {
    return value != value ? half_nan_bits : Eigen::numext::bit_cast<uint16_t>(Eigen::half(value));
}

inline uint16_t float_to_brain(float value) {
    return value != value ? half_nan_bits : Eigen::numext::bit_cast<uint16_t>(Eigen::bfloat16(value));
}

// To odd: a result that is not exact has its last bit set, so that one more rounding, to at most 22 bits, is right.
inline float round_to_odd(double value) {
    const float nearest = static_cast<float>(value);
    const uint32_t bits = float_bits(nearest);
    const double error = static_cast<double>(nearest) - value;
    if (error == 0 || error != error) return nearest;
    const bool too_large = (error > 0) != (value < 0);
    return bits_float((too_large ? bits - 1 : bits) | 1);
}

// a + b to odd, for sums whose error fits a double.
inline double add_to_odd(double a, double b) {
    const double sum = a + b;
    const double part = sum - a;
    const double error = (a - (sum - part)) + (b - part);
    if (error == 0 || error != error) return sum;
    uint64_t bits;
    std::memcpy(&bits, &sum, sizeof(bits));
    if ((bits & 1) == 0) bits = (error > 0) != (sum < 0) ? bits + 1 : bits - 1;
    double odd;
    std::memcpy(&odd, &bits, sizeof(odd));
    return odd;
}

}  // namespace heed::device
