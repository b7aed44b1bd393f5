// What heed_attention_probs has checked: everything but the metadata's values.
#pragma once

#include "plan.h"

namespace heed {

struct ProbsCall {
    const heed_plan &plan;
    const heed_args &args;
    heed_probs_mode mode;
    heed_tensor out;  // not empty
    View probs = {};  // [batch, num_heads, max_q_len, max_kv_len]
};

}  // namespace heed
