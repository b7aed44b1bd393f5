// What this machine can run. Decided by CPUID feature bits and the state that the operating system saves (XCR0), never
// by model numbers: virtual machines mask features.
#pragma once

#include "runtime/kernel.h"

namespace heed {

// Those of CPUs, a later one has all that an earlier one has.
inline constexpr Isa cpu_isas[] = {Isa::x86_64, Isa::avx2, Isa::avx512, Isa::avx512bf16, Isa::amx};

bool cpu_supports(Isa isa);

// The words that have the feature bits: CPUID leaf 1, leaf 7, subleaf 1 of leaf 7, and XCR0, which says what state the
// system saves. What a CPU lacks is 0.
struct CpuWords {
    uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, leaf7_1_eax, xcr0;
};

// Bit 1 << Isa for each that may be used. may_use_tiles asks the system; only where nothing else is missing.
uint32_t isas_of(const CpuWords &words, bool (*may_use_tiles)());

// Whose CPU it is: what no instruction set tells.
bool is_intel();

// Whether dot products of pairs of bf16 take longer than FMAs of the same numbers as floats: on Intel's cores, which
// have AMX for them (measured, Emerald Rapids: 172 and 352 GFLOP/s of two cores). AMD's take half as long.
bool has_slow_bf16_dots();

// Counts the ISA as supported from now on: for tests that emulate its instructions.
void assume_cpu_supports(Isa isa);

const char *target_name(KernelTarget target);

// CPUs that this process may use, at least 1.
int32_t cpu_count();

}  // namespace heed
