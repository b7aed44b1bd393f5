// Compiled once per ISA, with HEED_BENCH_ISA naming it. Includes nothing that could leave an inline function:
// the linker would keep one copy for all, perhaps the one with instructions that the machine lacks.
#include "bench/ceilings_loops.h"

namespace heed_bench {
namespace {

#if defined(__AVX512F__)
constexpr size_t vector_bytes = 64;
constexpr int num_chains = 24;  // of 32 registers
#elif defined(__AVX2__)
constexpr size_t vector_bytes = 32;
constexpr int num_chains = 12;  // of 16; 2 units x 4..5 cycles need 8..10
#else
constexpr size_t vector_bytes = 16;
constexpr int num_chains = 12;
#endif
constexpr size_t lanes = vector_bytes / sizeof(float);

using Vector = float __attribute__((vector_size(vector_bytes)));
using Integers = int __attribute__((vector_size(vector_bytes)));

inline float sum(Vector x) {
    float total = 0;
    for (size_t i = 0; i < lanes; i++) {
        total += x[i];
    }
    return total;
}

float fma(long iterations) {
    Vector chains[num_chains];  // from values that the compiler cannot know: it would drop a chain at its fixed point
    for (int i = 0; i < num_chains; i++) {
        chains[i] = Vector{} + static_cast<float>(iterations + i);
    }
    const Vector factor = Vector{} + 0.9999f, addend = Vector{} + 0.001f;
    for (long n = 0; n < iterations; n++) {
#pragma GCC unroll 24
        for (int i = 0; i < num_chains; i++) {
            chains[i] = chains[i] * factor + addend;
        }
    }
    Vector total{};
    for (int i = 0; i < num_chains; i++) {
        total += chains[i];
    }
    return sum(total);
}

// 2^x for x <= 0. Adding 1.5 * 2^23 rounds to an integer, whose bits then move to the exponent; degree 5 is the least
// that keeps f32 accuracy (relative error 1e-7).
inline Vector exp2_nonpositive(Vector x) {
    constexpr float rounder = 12582912.f;
    const Vector floor = Vector{} - 126.f;
    x = x > floor ? x : floor;
    const Vector shifted = x + rounder;
    const Vector fraction = x - (shifted - rounder);
    Vector p = fraction * 0.0013390863f + 0.009676032f;
    p = p * fraction + 0.055503571f;
    p = p * fraction + 0.24022107f;
    p = p * fraction + 0.69314719f;
    p = p * fraction + 1.f;
    return reinterpret_cast<Vector>(reinterpret_cast<Integers>(p) + (reinterpret_cast<Integers>(shifted) << 23));
}

float exp2_sum(const float *logits, size_t count, float scale, float max, float *probs) {
    const Vector *in = reinterpret_cast<const Vector *>(logits);
    Vector *out = reinterpret_cast<Vector *>(probs);
    Vector totals[4] = {};
    for (size_t i = 0; i < count / lanes; i += 4) {
#pragma GCC unroll 4
        for (size_t j = 0; j < 4; j++) {
            out[i + j] = exp2_nonpositive(in[i + j] * scale - max);
            totals[j] += out[i + j];
        }
    }
    return sum(totals[0] + totals[1] + totals[2] + totals[3]);
}

// `num_streams` sequential streams through equal parts of the data, `unroll` vectors of each per step.
template <size_t num_streams, size_t unroll, size_t prefetch_bytes>
float read(const float *data, size_t count) {
    const size_t part = count / lanes / num_streams;
    const Vector *in = reinterpret_cast<const Vector *>(data);
    Integers totals[num_streams * unroll] = {};
    for (size_t i = 0; i < part; i += unroll) {
#pragma GCC unroll 4
        for (size_t s = 0; s < num_streams; s++) {
#pragma GCC unroll 8
            for (size_t j = 0; j < unroll; j++) {
                const Vector *at = in + s * part + i + j;
                if (prefetch_bytes > 0 && j * vector_bytes % 64 == 0) {
                    __builtin_prefetch(reinterpret_cast<const char *>(at) + prefetch_bytes);
                }
                totals[s * unroll + j] ^= reinterpret_cast<Integers>(*at);
            }
        }
    }
    Integers total{};
    for (const Integers &part_total : totals) {
        total ^= part_total;
    }
    return static_cast<float>(total[0]);
}

}  // namespace

template <>
const IsaLoops &isa_loops<HEED_BENCH_ISA>() {
    static constexpr IsaLoops loops = {fma,
                                       2.0 * num_chains * lanes,
                                       exp2_sum,
                                       {{"plain", read<1, 1, 0>},
                                        {"unrolled", read<1, 8, 0>},
                                        {"unrolled, prefetching", read<1, 8, 4096>},
                                        {"four streams", read<4, 4, 0>}}};
    return loops;
}

}  // namespace heed_bench
