// What this machine can run. Decided by CPUID feature bits and the state that the operating system saves (XCR0), never
// by model numbers: virtual machines mask features.
#pragma once

#include "kernel.h"

namespace heed {

bool cpu_supports(Isa isa);  // false for CUDA

// Counts the ISA as supported from now on: for tests that emulate its instructions.
void assume_cpu_supports(Isa isa);

// The features that rows of this ISA need, in words.
const char *isa_requirements(Isa isa);

const char *isa_name(Isa isa);

// CPUs that this process may use, at least 1.
int32_t cpu_count();

}  // namespace heed
