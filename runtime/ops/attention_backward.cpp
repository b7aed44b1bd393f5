// heed_attention_backward: checks.
#include "runtime/backend.h"
#include "runtime/float_environment.h"
#include "runtime/kernel_call.h"
#include "runtime/ops/gradient_checks.h"
#include "runtime/ranges.h"
#include "runtime/status.h"

namespace heed {
namespace {

heed_status find_workspace(const heed_plan &plan, int64_t *bytes) {
    const heed_status status = check_gradients_supported(plan);
    return status ? status : backend_of(plan.problem.device).backward_workspace(plan, bytes);
}

}  // namespace
}  // namespace heed

extern "C" {

size_t heed_attention_backward_workspace_bytes(const heed_plan *plan) {
    const heed::DefaultFloatEnvironment environment;
    int64_t bytes = 0;
    return plan == nullptr || heed::find_workspace(*plan, &bytes) ? 0 : static_cast<size_t>(bytes);
}

heed_status heed_attention_backward(const heed_plan *plan, const heed_args *args, const heed_gradients *gradients) {
    const heed::DefaultFloatEnvironment environment;
    heed_status status = heed::check_call(heed::backward_function, plan, args);
    if (!status) status = heed::check_given(heed::backward_function, "gradients", "heed_gradients", gradients);
    int64_t bytes = 0;
    if (!status) status = heed::find_workspace(*plan, &bytes);
    if (status) return status;
    const heed_args own_args = *args;
    const heed_gradients own_gradients = *gradients;
    status = heed::check_gradients_memory(*plan, own_args, own_gradients, bytes);
    return status ? status : heed::backend_of(plan->problem.device).attention_backward(*plan, own_args, own_gradients);
}

}  // extern "C"
