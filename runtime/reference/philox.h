// Random words of dropout, by the contract's definition.
#pragma once

#include <array>
#include <cstdint>

namespace heed_reference {

// Philox4x32-10 of a 128-bit counter (words of low and high) and a 64-bit key.
std::array<uint32_t, 4> philox(uint64_t counter_low, uint64_t counter_high, uint64_t key);

// Whether element e of the dropout mask is kept.
bool dropout_keeps(uint64_t e, float p, uint64_t seed, uint64_t offset);

}  // namespace heed_reference
