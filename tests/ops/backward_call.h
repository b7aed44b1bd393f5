// Runs heed_attention_backward after a heed_execute of the same case, in guarded memory.
#pragma once

#include <string>
#include <vector>

#include "tests/support/call.h"
#include "tests/support/gradients.h"

namespace heed_test {

// Results as floats, indexed as heed_test::Gradients.
struct BackwardResult {
    std::vector<float> dq, dk, dv, dbias, dsink;
};

class BackwardCall {
public:
    // dout is indexed as out; values are rounded to the type.
    BackwardCall(const Attention &a, const CallOptions &options, const std::vector<float> &dout);

    Call forward;
    heed_gradients gradients;

    // Plan, forward call, outputs that hold NaN.
    heed_status prepare();
    heed_status backward();

    // What the forward call left, as inputs of the oracle.
    GradientInputs inputs() const;
    BackwardResult result() const;
    bool outputs_untouched() const;
    bool slack_intact() const;

private:
    const Attention &a_;
    const CallOptions options_;
    const std::vector<float> given_dout_;
    Storage storage_;
    GuardedBuffer dout_, dq_, dk_, dv_, dbias_, dsink_, workspace_;

    Extents q_extents(int32_t elements) const { return {{storage_.q.outer, storage_.q.inner, a_.num_heads, elements}}; }
    Extents kv_extents(int32_t elements) const {
        return {{storage_.kv.outer, storage_.kv.inner, a_.num_kv_heads, elements}};
    }
    heed_tensor make(GuardedBuffer *buffer, int64_t span, heed_dtype dtype) const;
};

}  // namespace heed_test
