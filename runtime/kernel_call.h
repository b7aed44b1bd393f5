// From a plan's problem and a call's tensors to what kernels take; shared by attention and its probabilities.
#pragma once

#include <algorithm>

#include "heed/fields.h"
#include "runtime/halide_bridge.h"
#include "runtime/kernel_arguments.h"
#include "runtime/plan.h"

namespace heed {

// A stride in a buffer. Larger ones, which only k, v and their scales have, are arguments of their own:
// HEED_WIDE_STRIDES.
inline int32_t narrow_stride(int64_t stride) { return static_cast<int32_t>(std::min(stride, max_int32)); }

// Reverses a view into a kernel's dimension order.
KernelBuffer kernel_buffer(void *data, heed_dtype dtype, const View &view);

// k and v as kernels get them. A batch or token axis along which neither moves has one index there: the 32-bit
// arithmetic of kernels bounds the product of the extents. (Scales move along every axis.)
struct KernelViews {
    View k, v;
};
KernelViews kernel_views(const heed_problem &problem, const ProblemViews &views);

// Where a kernel reads keys or values.
struct KeyRows {
    void *data;
    const View &view;  // of KernelViews
};
// k and v of a call, and their strides.
void set_keys(const KeyRows &k, const KeyRows &v, heed_dtype dtype, KernelCall *call);

MaskForm mask_form(const heed_problem &problem);
BiasForm bias_form(const heed_problem &problem);

// What is true of every call with a plan, before any tensor is looked at: struct size, threads, pool.
heed_status check_call(const char *function, const heed_plan *plan, const heed_args *args);

// HEED_LOGIT_VALUES of a problem.
struct LogitValues {
    HEED_LOGIT_VALUES(HEED_VALUE_FIELD)

    explicit LogitValues(const heed_problem &problem);
};

// The features that a problem asks of its kernel.
uint32_t features_of(const heed_problem &problem);

// HEED_DROPOUT_VALUES of a call.
struct DropoutValues {
    HEED_DROPOUT_VALUES(HEED_VALUE_FIELD)

    DropoutValues(const heed_problem &problem, const heed_args &args);
};

#define HEED_SET_VALUE(name, type) arguments->name = values.name;
template <typename Arguments>
void set_values(const LogitValues &values, Arguments *arguments) {
    HEED_LOGIT_VALUES(HEED_SET_VALUE)
}
// HEED_HEAD_VALUES of a head of a call.
template <typename Arguments>
void set_head_values(const heed_problem &p, const heed_args &args, int64_t head, Arguments *arguments) {
#define HEED_SET_OF_HEAD(name, used, otherwise) arguments->name = p.used ? args.name[head] : (otherwise);
    HEED_LOGIT_ARRAYS(HEED_SET_OF_HEAD)
#undef HEED_SET_OF_HEAD
}
template <typename Arguments>
void set_values(const DropoutValues &values, Arguments *arguments) {
    HEED_DROPOUT_VALUES(HEED_SET_VALUE)
}
#undef HEED_SET_VALUE

}  // namespace heed
