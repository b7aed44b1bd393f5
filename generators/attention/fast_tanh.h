#pragma once

#include "heed/user_score.h"

namespace heed {

// The score function with each tanh as soft_capped() computes it: Halide's is a call per element on x86, and spills on
// CUDA.
ScoreMod with_fast_tanh(ScoreMod mod);

}  // namespace heed
