#include "runtime/cpu/copy_rows.h"

#include <immintrin.h>

#include <cstring>

namespace heed {
namespace {

constexpr int64_t lanes = 8;

template <size_t element>
void as_it_is(const char *from, char *to, int64_t elements) {
    std::memcpy(to, from, static_cast<size_t>(elements) * element);
}

__attribute__((target("avx2,f16c"))) __m256 widened(__m128i of, bool is_f16) {
    return is_f16 ? _mm256_cvtph_ps(of) : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(of), 16));
}

template <bool is_f16>
__attribute__((target("avx2,f16c"))) void as_floats(const char *from, char *to, int64_t elements) {
    int64_t done = 0;
    for (; done + lanes <= elements; done += lanes) {
        const __m128i of = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + 2 * done));
        _mm256_storeu_ps(reinterpret_cast<float *>(to) + done, widened(of, is_f16));
    }
    if (done == elements) return;
    uint16_t last[lanes] = {};
    float floats[lanes];
    const auto left = static_cast<size_t>(elements - done);
    std::memcpy(last, from + 2 * done, 2 * left);
    _mm256_storeu_ps(floats, widened(_mm_loadu_si128(reinterpret_cast<const __m128i *>(last)), is_f16));
    std::memcpy(to + sizeof(float) * static_cast<size_t>(done), floats, sizeof(float) * left);
}

}  // namespace

CopyRow copy_row(heed_dtype of, heed_dtype as) {
    if (of == as) return of == HEED_F32 ? as_it_is<4> : as_it_is<2>;
    return of == HEED_F16 ? as_floats<true> : as_floats<false>;
}

}  // namespace heed
