#include "element.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace heed_bench {

namespace {

float from_f16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const float size = exponent == 31  ? std::numeric_limits<float>::quiet_NaN()
                       : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                       : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
    return (bits & 0x8000) != 0 ? -size : size;
}

float from_bf16(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float x = 0;
    std::memcpy(&x, &wide, sizeof x);
    return x;
}

template <typename Element, typename Widen>
std::vector<float> widen_all(const void *data, int64_t first, int64_t count, const Widen &widen) {
    const Element *from = static_cast<const Element *>(data) + first;
    std::vector<float> wide(static_cast<size_t>(count));
    for (size_t i = 0; i < wide.size(); i++) {
        wide[i] = widen(from[i]);
    }
    return wide;
}

}  // namespace

int64_t element_bytes(heed_dtype dtype) {
    return dtype == HEED_F32 || dtype == HEED_I32 ? 4 : (dtype == HEED_F16 || dtype == HEED_BF16 ? 2 : 1);
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

heed_dtype dtype_of(const std::string &name) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16, HEED_I8}) {
        if (name == dtype_name(dtype)) {
            return dtype;
        }
    }
    throw std::invalid_argument("\"" + name + "\" is no element type: f32, f16, bf16, i8");
}

uint16_t to_f16(float x) {
    const int sign = std::signbit(x) ? 0x8000 : 0;
    int exponent = 0;
    std::frexp(x, &exponent);
    if (exponent < -13) {  // subnormal
        return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(std::ldexp(std::fabs(x), 24))));
    }
    // 11 bits with the leading one; one more after rounding up carries into the exponent, as it should.
    const int significand = static_cast<int>(std::nearbyint(std::ldexp(std::fabs(x), 11 - exponent)));
    return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + significand - 1024));
}

uint16_t to_bf16(float x) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof bits);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

double rounding(heed_dtype dtype) {
    return dtype == HEED_F16 ? std::ldexp(1.0, -11) : (dtype == HEED_BF16 ? std::ldexp(1.0, -8) : 0);
}

std::vector<float> widened(heed_dtype dtype, const void *data, int64_t first, int64_t count) {
    switch (dtype) {
    case HEED_F16:
        return widen_all<uint16_t>(data, first, count, from_f16);
    case HEED_BF16:
        return widen_all<uint16_t>(data, first, count, from_bf16);
    case HEED_I8:
        return widen_all<int8_t>(data, first, count, [](int8_t x) { return static_cast<float>(x); });
    default:
        return widen_all<float>(data, first, count, [](float x) { return x; });
    }
}

}  // namespace heed_bench
