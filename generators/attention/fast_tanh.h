#pragma once

#include "heed/user_score.h"

namespace heed {

// The score function with each tanh as soft_capped() computes it, or tanh_on_device(): Halide's is a call per element
// on x86, and spills on CUDA.
ScoreMod with_fast_tanh(ScoreMod mod, bool on_cuda);

}  // namespace heed
