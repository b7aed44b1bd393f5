// The loops that measure a machine's ceilings. Call them only where unit_available() says so.
#pragma once

#include <cstddef>

#include "heed/heed.h"

namespace heed_bench {

// Sums `count` floats (a multiple of 1024, 64-byte aligned) and nothing else: only the reads cost.
struct ReadLoop {
    const char *name;
    float (*run)(const float *data, size_t count);
};

constexpr int num_read_loops = 4;

// One set per width of vectors: ceilings_loops.cpp is compiled once for each.
struct IsaLoops {
    // Independent fused multiply-adds (SSE: multiply, add) in registers; returns a value so that none is dropped.
    float (*fma)(long iterations);
    double fma_flops_per_iteration;
    // The inner part of a softmax: probs[i] = 2^(logits[i] * scale - max) for results <= 1, returns their sum.
    // `count` is a multiple of 64, both arrays 64-byte aligned.
    float (*exp2_sum)(const float *logits, size_t count, float scale, float max, float *probs);
    ReadLoop reads[num_read_loops];
};

template <heed_isa isa>
const IsaLoops &isa_loops();
template <>
const IsaLoops &isa_loops<HEED_X86_64>();
template <>
const IsaLoops &isa_loops<HEED_AVX2>();
template <>
const IsaLoops &isa_loops<HEED_AVX512>();

// Products of bf16 summed in f32, from registers: vdpbf16ps on 512 bits, tdpbf16ps on tiles of 16 x 64 bytes.
float dot_bf16(long iterations);
constexpr double dot_bf16_flops_per_iteration = 24 * 16 * 4.0;
float tile_bf16(long iterations);
constexpr double tile_bf16_flops_per_iteration = 4 * 16 * 16 * 32 * 2.0;

// The CPU has tiles with bf16 and the system lets this process use them, from now on.
bool request_tiles();

}  // namespace heed_bench
