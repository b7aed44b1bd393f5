// Kernels of the table, by name. A name ends in the kernel's storage, its ISA and, where it is not the first one for
// them, its schedule: "..._contiguous_avx512", "..._paged_avx2_wide".
#pragma once

#include <string>
#include <vector>

namespace heed_bench {

// Throws std::invalid_argument when the name is no kernel's.
std::string isa_of(const std::string &kernel);

// The kernel of the same name for another ISA.
std::string kernel_for_isa(const std::string &kernel, const std::string &isa);

// Those that run on this CPU; with a non-empty `isa`, of that only. None of a GPU's.
std::vector<std::string> cpu_kernels(const std::string &isa);

}  // namespace heed_bench
