// Rows of the kernel table, by name. A name ends in the row's storage and its ISA: "..._contiguous_avx512".
#pragma once

#include <string>
#include <vector>

namespace heed_bench {

// Throws std::invalid_argument when the name is no row's.
std::string isa_of(const std::string &row);

// The row of the same name for another ISA.
std::string row_for_isa(const std::string &row, const std::string &isa);

// Those that run on this CPU; with a non-empty `isa`, of that only. None of a GPU's.
std::vector<std::string> cpu_rows(const std::string &isa);

}  // namespace heed_bench
