// heed_rope in two steps, for operations that rotate what they have written.
#pragma once

#include "runtime/ops/rotation.h"

namespace heed {

struct RopeCall {
    View x, out;
    Rotation rotation;
};

// Checks all arguments but struct_size. An empty tensor has call->out.span 0.
heed_status prepare_rope(const heed_rope_args &args, RopeCall *call);

heed_status run_rope(const heed_rope_args &args, const RopeCall &call);

}  // namespace heed
