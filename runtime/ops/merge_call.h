// What heed_merge_states has checked.
#pragma once

#include "runtime/view.h"

namespace heed {

struct MergeCall {
    View outs, out;
    View lse;  // [batch, num_heads, q_len, 1], of lse and of each of lses
};

}  // namespace heed
