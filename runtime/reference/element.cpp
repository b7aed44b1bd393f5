#include "element.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

namespace heed_reference {
namespace {

uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

uint16_t to_bf16(float x) {
    const uint32_t bits = bits_of(x);
    if (std::isnan(x)) return static_cast<uint16_t>((bits >> 16) | 0x40u);
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The bits of a float less the 13 that f16 has not, rounded half to even: a carry moves into the exponent by itself.
uint16_t to_f16(float x) {
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520
    if (magnitude < 0x38800000u) {  // 2^-14: a multiple of 2^-24, the last place of floats from 0.5 to 1
        return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));
    }
    const uint32_t rebiased = magnitude - ((127 - 15) << 23);
    return static_cast<uint16_t>(sign | ((rebiased + 0xfffu + (rebiased >> 13 & 1u)) >> 13));
}

float value_of_f16(uint16_t bits) {
    const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
    const float sign = (bits & 0x8000u) != 0 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
    return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

float from_f16(uint16_t bits) {
    static const std::vector<float> values = [] {
        std::vector<float> result;
        for (uint32_t n = 0; n < 0x10000u; n++) result.push_back(value_of_f16(static_cast<uint16_t>(n)));
        return result;
    }();
    return values[bits];
}

// The largest power of two that divides x, which is not 0.
float lowest_bit(float x) {
    int exponent = 0;
    const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(x, &exponent), 24));
    return std::ldexp(1.0f, exponent - 24 + __builtin_ctzll(static_cast<uint64_t>(mantissa)));
}

// Without the 7 lowest bits, so that the product with a code is exact.
float shortened(float x) { return float_of(bits_of(x) & ~0x7fu); }

}  // namespace

int64_t element_bytes(heed_dtype dtype) {
    switch (dtype) {
    case HEED_F16:
    case HEED_BF16:
        return 2;
    case HEED_I8:
    case HEED_U8:
        return 1;
    default:
        return 4;
    }
}

uint16_t to_bits(heed_dtype dtype, float x) { return dtype == HEED_F16 ? to_f16(x) : to_bf16(x); }

float from_bits(heed_dtype dtype, uint16_t bits) {
    return dtype == HEED_F16 ? from_f16(bits) : float_of(static_cast<uint32_t>(bits) << 16);
}

float round_to(heed_dtype dtype, float x) { return dtype == HEED_F32 ? x : from_bits(dtype, to_bits(dtype, x)); }

float largest_finite(heed_dtype dtype) {
    return dtype == HEED_F16 ? 65504.0f : dtype == HEED_BF16 ? from_bits(HEED_BF16, 0x7f7f) : FLT_MAX;
}

float quantize_row(const float *row, int32_t n, int8_t *codes) {
    float largest = 0, unit = INFINITY;
    bool finite = true;
    for (int32_t d = 0; d < n; d++) {
        finite = finite && std::isfinite(row[d]);
        largest = std::max(largest, std::fabs(row[d]));
        if (finite && row[d] != 0) unit = std::min(unit, lowest_bit(row[d]));
    }
    const float scale = largest == 0 ? 0 : largest / unit <= 127 ? unit : shortened(largest / 127);
    for (int32_t d = 0; d < n; d++) {
        const float code = finite && scale > 0 ? std::nearbyint(row[d] / scale) : 0;
        codes[d] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
    }
    return finite ? scale : NAN;
}

const char *dtype_name(heed_dtype dtype) {
    switch (dtype) {
    case HEED_F32:
        return "f32";
    case HEED_F16:
        return "f16";
    case HEED_BF16:
        return "bf16";
    case HEED_I8:
        return "i8";
    default:
        return "?";
    }
}

}  // namespace heed_reference
