#pragma once

#include "heed/user_score.h"

namespace heed {

// The score function with each tanh as soft_capped() computes it, or tanh_on_device(): Halide's is a call per element
// on x86, and spills on CUDA. On CUDA x / y is x times the reciprocal of y, as compilers of GPUs have it: a division
// that is rounded as written has a call for each logit.
ScoreMod with_fast_math(ScoreMod mod, bool on_cuda);

}  // namespace heed
