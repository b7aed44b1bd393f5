// heed_execute: all checks of pointers.
#include <cstring>

#include "runtime/backend.h"
#include "runtime/float_environment.h"
#include "runtime/inputs.h"
#include "runtime/kernel_call.h"
#include "runtime/plan.h"
#include "runtime/status.h"

namespace heed {
namespace {

// Pointers, capacities, alignment, overlaps; nothing is read through them yet.
heed_status check_pointers(const heed_plan &plan, const heed_args &args) {
    const heed_problem &p = plan.problem;
    MemoryRanges ranges;
    heed_status status = ranges.add("out", args.out, p.dtype, plan.views.out.span, Access::write);
    if (!status) status = add_declared(p.want_lse, "lse", args.lse, HEED_F32, plan.views.lse, Access::write, &ranges);
    if (!status) status = add_workspace(plan, args, &ranges);
    if (!status) status = add_score_buffers(*plan.kernel, args, &ranges);
    return status ? status : add_inputs(p, plan.views, args, Reads::all, &ranges);
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_args_init(heed_args *args) {
    if (args == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_args_init: args is NULL");
    std::memset(args, 0, sizeof(*args));
    args->struct_size = sizeof(*args);
    return HEED_OK;
}

heed_status heed_execute(const heed_plan *plan, const heed_args *args) {
    const heed::DefaultFloatEnvironment environment;
    if (const heed_status status = heed::check_call("heed_execute", plan, args)) return status;
    const heed_args call = *args;
    if (heed::is_empty_problem(plan->problem)) return HEED_OK;
    if (const heed_status status = heed::check_pointers(*plan, call)) return status;
    return heed::backend_of(plan->problem.device).execute(*plan, call);
}

}  // extern "C"
