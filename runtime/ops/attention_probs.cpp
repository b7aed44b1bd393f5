// heed_attention_probs: checks.
#include "backend.h"
#include "inputs.h"
#include "kernel_call.h"
#include "ops/probs_call.h"
#include "ranges.h"
#include "status.h"

namespace heed {
namespace {

heed_status check_memory(const ProbsCall &call) {
    const heed_problem &p = call.plan.problem;
    if (call.out.dtype != HEED_F32 && call.out.dtype != p.dtype) {
        return fail(HEED_INVALID_ARGUMENT, "probs.dtype is %d; it must be HEED_F32 (0) or the problem's dtype (%d)",
                    static_cast<int>(call.out.dtype), static_cast<int>(p.dtype));
    }
    MemoryRanges ranges;
    heed_status status = ranges.add("probs", call.out, call.out.dtype, call.probs.span, Access::write);
    if (!status) status = backend_of(p.device).add_probs_workspace(call.plan, call.args, &ranges);
    return status ? status : add_inputs(p, call.plan.views, call.args, Reads::no_values, &ranges);
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_attention_probs(const heed_plan *plan, const heed_args *args, heed_probs_mode mode,
                                            const heed_tensor *probs, const heed_layout *probs_layout) {
    heed_status status = heed::check_call("heed_attention_probs", plan, args);
    if (!status && probs == nullptr) {
        status = heed::fail(HEED_INVALID_ARGUMENT, "heed_attention_probs: probs is NULL");
    }
    if (!status) status = heed::check_int("mode", mode, HEED_PROBS_SCORES, HEED_PROBS_SOFTMAX);
    if (status) return status;
    const heed_problem &p = plan->problem;
    if (p.score_mod[0] != '\0') {
        return heed::fail(HEED_UNSUPPORTED, "score_mod is \"%s\"; heed_attention_probs knows no score functions",
                          p.score_mod);
    }
    const heed_args copy = *args;
    heed::ProbsCall call = {*plan, copy, mode, *probs};
    const heed::Shape shape = {{p.batch, p.num_heads, p.max_q_len, p.max_kv_len}};
    const heed_layout layout = probs_layout == nullptr ? heed_layout{} : *probs_layout;
    status = heed::make_view("probs", shape, layout, heed::Access::write, &call.probs);
    if (status || call.probs.span == 0) return status;
    status = heed::check_memory(call);
    return status ? status : heed::backend_of(p.device).attention_probs(call);
}
