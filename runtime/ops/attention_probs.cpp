// heed_attention_probs: checks.
#include "runtime/backend.h"
#include "runtime/float_environment.h"
#include "runtime/inputs.h"
#include "runtime/kernel_call.h"
#include "runtime/ops/probs_call.h"
#include "runtime/ranges.h"
#include "runtime/status.h"

namespace heed {
namespace {

heed_status check_memory(const ProbsCall &call) {
    const heed_problem &p = call.plan.problem;
    if (call.out.dtype != HEED_F32 && call.out.dtype != p.dtype) {
        return fail(HEED_INVALID_ARGUMENT, "probs.dtype is %s (%d); it must be HEED_F32 (0) or the problem's, %s (%d)",
                    dtype_name(call.out.dtype), static_cast<int>(call.out.dtype), dtype_name(p.dtype),
                    static_cast<int>(p.dtype));
    }
    MemoryRanges ranges;
    heed_status status = ranges.add("probs", call.out, call.out.dtype, call.probs.span, Access::write);
    if (!status) status = backend_of(p.device).add_probs_workspace(call.plan, call.args, &ranges);
    return status ? status : add_inputs(p, call.plan.views, call.args, Reads::no_values, &ranges);
}

heed_status set_view(const heed_layout &layout, ProbsCall *call) {
    const heed_problem &p = call->plan.problem;
    const Shape shape = {{p.batch, p.num_heads, p.max_q_len, p.max_kv_len}};
    return make_view("probs", shape, layout, Access::write, &call->probs);
}

}  // namespace

heed_status execute_with_probs(const heed_plan &plan, const heed_args &args, const heed_tensor &probs) {
    const Backend &backend = backend_of(plan.problem.device);
    ProbsCall call = {plan, args, HEED_PROBS_SOFTMAX, probs};
    heed_status status = set_view({}, &call);
    if (status) return status;
    call.with_out = call.probs.span > 0 && backend.multiplies_probs(call);
    if (!call.with_out) status = heed_execute(&plan, &args);
    if (status || call.probs.span == 0) return status;
    status = check_memory(call);
    return status ? status : backend.attention_probs(call);
}

}  // namespace heed

extern "C" heed_status heed_attention_probs(const heed_plan *plan, const heed_args *args, heed_probs_mode mode,
                                            const heed_tensor *probs, const heed_layout *probs_layout) {
    const heed::DefaultFloatEnvironment environment;
    heed_status status = heed::check_call("heed_attention_probs", plan, args);
    if (!status) status = heed::check_given("heed_attention_probs", "probs", probs);
    if (!status) status = heed::check_int("mode", mode, HEED_PROBS_SCORES, HEED_PROBS_SOFTMAX);
    if (status) return status;
    const heed_problem &p = plan->problem;
    if (p.score_mod[0] != '\0') {
        return heed::fail(HEED_UNSUPPORTED, "score_mod is \"%s\"; heed_attention_probs knows no score functions",
                          p.score_mod);
    }
    const heed_args copy = *args;
    heed::ProbsCall call = {*plan, copy, mode, *probs};
    status = heed::set_view(probs_layout == nullptr ? heed_layout{} : *probs_layout, &call);
    if (status || call.probs.span == 0) return status;
    status = heed::check_memory(call);
    return status ? status : heed::backend_of(p.device).attention_probs(call);
}
