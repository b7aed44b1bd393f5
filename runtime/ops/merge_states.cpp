// heed_merge_states: checks.
#include <cstdio>

#include "runtime/backend.h"
#include "runtime/float_environment.h"
#include "runtime/ops/merge_call.h"
#include "runtime/ops/op_run.h"
#include "runtime/ranges.h"
#include "runtime/status.h"

namespace heed {
namespace {

heed_status check_fields(const heed_merge_args &a) {
    heed_status status = check_float_dtype("dtype", a.dtype);
    if (!status) status = check_execution(&a.execution);
    if (!status) status = check_int("batch", a.batch, 0, INT32_MAX);
    if (!status) status = check_int("q_len", a.q_len, 0, INT32_MAX);
    if (!status) status = check_int("num_heads", a.num_heads, 0, INT32_MAX);
    if (!status) status = check_head_dim("head_dim_v", a.head_dim_v);
    if (!status) status = check_int("num_states", a.num_states, 1, INT32_MAX);
    return status;
}

heed_status check_views(const heed_merge_args &a, MergeCall *call) {
    const Shape shape = {{a.batch, a.q_len, a.num_heads, a.head_dim_v}};
    const heed_layout packed = {};
    heed_status status = make_view("outs", shape, a.outs_layout, Access::read, &call->outs);
    if (!status) status = make_view("out", shape, a.out_layout, Access::write, &call->out);
    if (status) return status;
    return make_view("lse", {{a.batch, a.num_heads, a.q_len, 1}}, packed, Access::write, &call->lse);
}

heed_status check_memory(const heed_merge_args &a, const MergeCall &call) {
    MemoryRanges ranges;
    heed_status status = ranges.add("out", a.out, a.dtype, call.out.span, Access::write);
    if (!status && a.lse.data != nullptr) status = ranges.add("lse", a.lse, HEED_F32, call.lse.span, Access::write);
    if (!status && (a.outs == nullptr || a.lses == nullptr)) {
        return fail(HEED_INVALID_ARGUMENT, "%s is NULL; it must point to num_states (%d) tensors",
                    a.outs == nullptr ? "outs" : "lses", a.num_states);
    }
    if (!status && a.sink != nullptr) status = ranges.add("sink", a.sink, a.num_heads, sizeof(float), Access::read);
    for (int32_t n = 0; n < a.num_states && !status; n++) {
        char name[32];
        const bool in_place = n == 0 && a.outs[0].data == a.out.data && same_layout(call.outs, call.out);
        std::snprintf(name, sizeof(name), "outs[%d]", n);
        status = ranges.add(name, a.outs[n], a.dtype, call.outs.span, Access::read, in_place ? "out" : nullptr);
        std::snprintf(name, sizeof(name), "lses[%d]", n);
        if (!status) status = ranges.add(name, a.lses[n], HEED_F32, call.lse.span, Access::read);
    }
    return status;
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_merge_states(const heed_merge_args *args) {
    const heed::DefaultFloatEnvironment environment;
    heed_status status = heed::check_given("heed_merge_states", "args", "heed_merge_args", args);
    if (status) return status;
    const heed_merge_args a = *args;
    heed::MergeCall call;
    status = heed::check_fields(a);
    if (!status) status = heed::check_views(a, &call);
    if (status || call.out.span == 0) return status;
    status = heed::check_memory(a, call);
    return status ? status : heed::backend_of(a.execution.device).merge_states(a, call);
}
