#include "runtime/reference/element.h"

#include <Eigen/Core>
#include <algorithm>
#include <cfloat>
#include <cmath>

#include "heed/fields.h"

namespace heed_reference {
namespace {

using Eigen::numext::bit_cast;

// The largest power of two that divides x, which is not 0.
float lowest_bit(float x) {
    int exponent = 0;
    const auto mantissa = static_cast<int64_t>(std::ldexp(std::frexp(x, &exponent), 24));
    return std::ldexp(1.0f, exponent - 24 + __builtin_ctzll(static_cast<uint64_t>(mantissa)));
}

// Without the 7 lowest bits, so that the product with a code is exact.
float shortened(float x) { return bit_cast<float>(bit_cast<uint32_t>(x) & ~0x7fu); }

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

uint16_t to_bits(heed_dtype dtype, float x) {
    return dtype == HEED_F16 ? bit_cast<uint16_t>(Eigen::half(x)) : bit_cast<uint16_t>(Eigen::bfloat16(x));
}

float from_bits(heed_dtype dtype, uint16_t bits) {
    return dtype == HEED_F16 ? static_cast<float>(bit_cast<Eigen::half>(bits))
                             : static_cast<float>(bit_cast<Eigen::bfloat16>(bits));
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

const char *dtype_name(heed_dtype dtype) { return heed_dtype_word(dtype); }

}  // namespace heed_reference
