// Rows of keys and values, copied as they are or, of 16 bits, as floats: exactly, so that no result depends on it.
#pragma once

#include <cstdint>

#include "heed/heed.h"

namespace heed {

using CopyRow = void (*)(const char *from, char *to, int64_t elements);

// of: f32, f16 or bf16; as: the same or f32. Of f16 and bf16 as f32 for CPUs that have AVX2 and F16C alone.
CopyRow copy_row(heed_dtype of, heed_dtype as);

}  // namespace heed
