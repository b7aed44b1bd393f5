// Compiled for AVX512_BF16, and like ceilings_loops.cpp without anything that could leave an inline function.
#include <immintrin.h>

#include "bench/ceilings_loops.h"

namespace heed_bench {

float dot_bf16(long iterations) {
    constexpr int num_chains = 24;  // of 32 registers
    static_assert(dot_bf16_flops_per_iteration == num_chains * 16 * 4.0);
    __m512 chains[num_chains];
    for (__m512 &chain : chains) {
        chain = _mm512_setzero_ps();
    }
    const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(0.001f), _mm512_set1_ps(0.001f));
    for (long n = 0; n < iterations; n++) {
#pragma GCC unroll 24
        for (int i = 0; i < num_chains; i++) {
            chains[i] = _mm512_dpbf16_ps(chains[i], x, x);
        }
    }
    __m512 total = _mm512_setzero_ps();
    for (const __m512 &chain : chains) {
        total = total + chain;
    }
    return total[0];
}

}  // namespace heed_bench
