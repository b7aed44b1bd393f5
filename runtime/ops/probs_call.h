// What heed_attention_probs has checked: everything but the metadata's values.
#pragma once

#include "runtime/plan.h"

namespace heed {

struct ProbsCall {
    const heed_plan &plan;
    const heed_args &args;
    heed_probs_mode mode;
    heed_tensor out;        // not empty
    View probs = {};        // [batch, num_heads, max_q_len, max_kv_len]
    bool with_out = false;  // the output of the attention too, where Backend::multiplies_probs()
};

// heed_execute and heed_attention_probs with HEED_PROBS_SOFTMAX, probs packed: each logit is computed at most twice.
heed_status execute_with_probs(const heed_plan &plan, const heed_args &args, const heed_tensor &probs);

}  // namespace heed
