// heed_attention_probs on CUDA.
#pragma once

#include "plan.h"

namespace heed {

// Everything but the metadata's values is checked; `probs` views `out`, which is not empty.
heed_status probs_on_cuda(const heed_plan &plan, const heed_args &args, heed_probs_mode mode, const heed_tensor &out,
                          const View &probs);

}  // namespace heed
