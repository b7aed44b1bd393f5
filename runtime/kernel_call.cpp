#include "runtime/kernel_call.h"

#include <algorithm>
#include <limits>

#include "runtime/dropout.h"
#include "runtime/ranges.h"
#include "runtime/status.h"

namespace heed {

KernelBuffer kernel_buffer(void *data, heed_dtype dtype, const View &view) {
    KernelBuffer buffer = {data, dtype, 4, {}, {}};
    for (int32_t i = 0; i < 4; i++) {
        buffer.extent[i] = static_cast<int32_t>(view.extent[3 - i]);
        buffer.stride[i] = narrow_stride(view.stride[3 - i]);
    }
    return buffer;
}

void set_keys(const KeyRows &k, const KeyRows &v, heed_dtype dtype, KernelCall *call) {
    const auto wide = [](int64_t stride) { return static_cast<uint64_t>(stride); };
    call->k = kernel_buffer(k.data, dtype, k.view);
    call->k_head_stride = wide(k.view.stride[2]);
    call->k_slot_stride = wide(k.view.stride[1]);
    call->k_page_stride = wide(k.view.stride[0]);
    call->v = kernel_buffer(v.data, dtype, v.view);
    call->v_head_stride = wide(v.view.stride[2]);
    call->v_slot_stride = wide(v.view.stride[1]);
    call->v_page_stride = wide(v.view.stride[0]);
}

KernelViews kernel_views(const heed_problem &p, const ProblemViews &views) {
    KernelViews result = {views.k, views.v};
    for (int i = 0; i < 2 && p.kv_dtype != HEED_I8; i++) {
        if (views.k.stride[i] == 0 && views.v.stride[i] == 0) result.k.extent[i] = result.v.extent[i] = 1;
    }
    return result;
}

MaskForm mask_form(const heed_problem &p) {
    if (!p.has_mask) return no_mask;
    return p.mask_true_hides ? mask_true_hides : mask_true_attends;
}

BiasForm bias_form(const heed_problem &p) {
    if (!p.has_bias) return no_bias;
    return p.bias_dtype == HEED_F32 ? bias_of_f32 : bias_of_dtype;
}

heed_status check_call(const char *function, const heed_plan *plan, const heed_args *args) {
    if (plan == nullptr) return fail(HEED_INVALID_ARGUMENT, "%s: plan is NULL", function);
    if (args == nullptr) return fail(HEED_INVALID_ARGUMENT, "%s: args is NULL", function);
    const heed_status status = check_struct_size("heed_args", args->struct_size, sizeof(heed_args), "heed_args_init");
    if (status) return status;
    if (args->num_threads < 0 || args->num_threads > plan->problem.max_threads) {
        return fail(HEED_INVALID_ARGUMENT, "num_threads is %d; it must be 0 or 1..%d, the plan's max_threads",
                    args->num_threads, plan->problem.max_threads);
    }
    if (args->pool != nullptr && args->pool->run == nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "pool->run is NULL; it must be a function, or pool NULL for Heed's threads");
    }
    return HEED_OK;
}

// Kernels scale the cap by log2(e) and divide by it: kept normal. Below 2^-100 every cap flattens the logits alike.
LogitValues::LogitValues(const heed_problem &p) : mask_form(heed::mask_form(p)), bias_form(heed::bias_form(p)) {
#define HEED_TAKE(name, type) name = p.name;
    HEED_LOGIT_NUMBERS(HEED_TAKE)
#undef HEED_TAKE
    if (softcap != 0) softcap = std::clamp(softcap, 0x1p-100f, std::numeric_limits<float>::max() / 2);
}

uint32_t features_of(const heed_problem &p) {
    return (p.has_bias ? feature_bias : 0u) | (p.has_mask ? feature_mask : 0u) |
           (p.softcap != 0 || p.has_temperature || p.temperature_growth != 0 ? feature_softcap : 0u) |
           (p.has_alibi ? feature_alibi : 0u) | (p.dropout_p != 0 ? feature_dropout : 0u);
}

DropoutValues::DropoutValues(const heed_problem &p, const heed_args &args)
    : dropout_seed(args.dropout_seed), dropout_offset(args.dropout_offset),
      dropout_threshold(heed::dropout_threshold(p.dropout_p)),
      dropout_scale(p.dropout_p < 1 ? 1 / (1 - p.dropout_p) : 0) {}

}  // namespace heed
