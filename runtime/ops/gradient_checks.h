// What heed_attention_backward asks of a plan and of memory, on every device.
#pragma once

#include "heed/ops.h"
#include "runtime/plan.h"

namespace heed {

constexpr const char *backward_function = "heed_attention_backward";

// UNSUPPORTED with a sentence where there are no gradients for the problem.
heed_status check_gradients_supported(const heed_plan &plan);

// The tensors of the forward call, the gradients and the workspace.
heed_status check_gradients_memory(const heed_plan &plan, const heed_args &args, const heed_gradients &gradients,
                                   int64_t workspace_bytes);

// The view of dbias: extent 1 where the bias does not move.
View dbias_view(const heed_problem &problem, const ProblemViews &views);

}  // namespace heed
