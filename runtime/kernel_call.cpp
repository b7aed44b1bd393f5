#include "kernel_call.h"

#include <algorithm>
#include <limits>

#include "status.h"

namespace heed {

KernelBuffer kernel_buffer(void *data, heed_dtype dtype, const View &view) {
    KernelBuffer buffer = {data, dtype, 4, {}, {}};
    for (int32_t i = 0; i < 4; i++) {
        buffer.extent[i] = static_cast<int32_t>(view.extent[3 - i]);
        buffer.stride[i] = static_cast<int32_t>(view.stride[3 - i]);
    }
    return buffer;
}

MaskForm mask_form(const heed_problem &p) {
    if (!p.has_mask) return no_mask;
    return p.mask_true_hides ? mask_true_hides : mask_true_attends;
}

BiasForm bias_form(const heed_problem &p) {
    if (!p.has_bias) return no_bias;
    return p.bias_dtype == HEED_F32 ? bias_of_f32 : bias_of_dtype;
}

heed_status check_threads(const heed_plan &plan, const heed_args &args) {
    if (args.num_threads < 0 || args.num_threads > plan.problem.max_threads) {
        return fail(HEED_INVALID_ARGUMENT, "num_threads is %d; it must be 0 or 1..%d, the plan's max_threads",
                    args.num_threads, plan.problem.max_threads);
    }
    if (args.pool != nullptr && args.pool->run == nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "pool->run is NULL; it must be a function, or pool NULL for Heed's threads");
    }
    return HEED_OK;
}

float kernel_softcap(float softcap) {
    if (softcap == 0) return 0;
    return std::clamp(softcap, 0x1p-100f, std::numeric_limits<float>::max() / 2);
}

}  // namespace heed
