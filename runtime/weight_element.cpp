#include "runtime/weight_element.h"

#include <algorithm>

namespace heed {
namespace {

uint32_t bits_of(float x) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

float float_of(uint32_t bits) {
    float x = 0;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// The exponent moves by a product with 2^112: subnormals become normal floats.
float from_f16(uint16_t half) {
    const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
    const uint32_t finite = bits_of(float_of(magnitude << 13) * 0x1p112f);
    return float_of(sign | (magnitude < 0x7c00u ? finite : 0x7f800000u | (magnitude & 0x3ffu) << 13));
}

float from_bf16(uint16_t half) { return float_of(static_cast<uint32_t>(half) << 16); }

// Shifts right by `count` (1..31) and rounds the rest half to even.
uint32_t rounded_shift(uint32_t x, uint32_t count) {
    const uint32_t half = 1u << (count - 1);
    return (x + half - 1 + ((x >> count) & 1)) >> count;
}

uint16_t to_f16(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {  // 65520 and above
        half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {  // 2^-14 and above
        half = rounded_shift(magnitude - 0x38000000u, 13);
    } else if (magnitude > 0x33000000u) {  // above 2^-25: multiples of 2^-24
        half = rounded_shift((magnitude & 0x7fffffu) | 0x800000u, 126 - (magnitude >> 23));
    }
    return static_cast<uint16_t>(sign | half);
}

// Without a branch: compilers make vectors of it.
uint16_t to_bf16(float x) {
    const uint32_t bits = bits_of(x), rounded = bits + 0x7fffu + (bits >> 16 & 1u);
    return static_cast<uint16_t>(((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x400000u : rounded) >> 16);
}

}  // namespace

float load_element(const void *data, int64_t i, heed_dtype dtype) {
    if (dtype == HEED_F32) return static_cast<const float *>(data)[i];
    const uint16_t half = static_cast<const uint16_t *>(data)[i];
    return dtype == HEED_F16 ? from_f16(half) : from_bf16(half);
}

void load_elements(const void *data, heed_dtype dtype, int64_t count, float *to) {
    const auto *const halves = static_cast<const uint16_t *>(data);
    if (dtype == HEED_F32) {
        std::copy_n(static_cast<const float *>(data), count, to);
    } else if (dtype == HEED_F16) {
        std::transform(halves, halves + count, to, from_f16);
    } else {
        std::transform(halves, halves + count, to, from_bf16);
    }
}

void store_elements(const float *from, heed_dtype dtype, int64_t count, void *data) {
    auto *const halves = static_cast<uint16_t *>(data);
    if (dtype == HEED_F32) {
        std::copy_n(from, count, static_cast<float *>(data));
    } else if (dtype == HEED_F16) {
        std::transform(from, from + count, halves, to_f16);
    } else {
        std::transform(from, from + count, halves, to_bf16);
    }
}

void store_element(void *data, int64_t i, heed_dtype dtype, float x) {
    if (dtype == HEED_F32) {
        static_cast<float *>(data)[i] = x;
    } else {
        static_cast<uint16_t *>(data)[i] = dtype == HEED_F16 ? to_f16(x) : to_bf16(x);
    }
}

}  // namespace heed
