// Metadata of the caller, which may change while a call runs: what is checked is what is used.
#pragma once

#include <cstdint>

namespace heed {

inline int32_t read_once(const int32_t &element) { return __atomic_load_n(&element, __ATOMIC_RELAXED); }

}  // namespace heed
