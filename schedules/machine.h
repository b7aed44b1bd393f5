#pragma once
// Facts about a target that schedules and tile sizes are derived from. The only place that asks a target for its
// features.

#include <string>

#include "Halide.h"
#include "generators/attention/config.h"

namespace heed {

struct Machine {
    int lanes;             // floats of a vector register
    int vector_registers;  // architectural
    bool has_fma;
    bool has_bf16_dots;
    bool has_bf16_tiles;
    int l2_bytes;  // of a core
};

// L2: 1 MiB, which cores with AVX-512 have at least.
Machine machine_of(const Halide::Target &target);

// "x86_64" (SSE4.1), "avx2" (with FMA and F16C), "avx512" (F, CD, VL, DQ, BW), "avx512bf16" (BF16 and what else its
// chips have), "amx" (AMX_BF16 likewise); anything else: an invalid target.
Halide::Target target_of_isa(const std::string &isa);

// Whether the instruction set multiplies pairs of bf16.
bool has_bf16_dots(const std::string &isa);

// The tiles and blocks that fit the machine: what of a config parameters.h may override.
void fit_tiles(const Machine &machine, AttentionConfig &config);

}  // namespace heed
