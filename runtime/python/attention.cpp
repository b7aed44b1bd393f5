// heed.attention and heed.attention_probs after their checks: the plan, the workspace, the call without the
// interpreter's lock.
#include <atomic>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "runtime/python/attention.h"
#include "runtime/python/bindings.h"
#include "runtime/python/execution.h"
#include "runtime/python/plan_cache.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

PlanCache plans;
std::atomic<uint64_t> num_calls{0};

CallWorkspace attach_workspace(AttentionCall *call, const Plan &plan, uint64_t stream, const nb::object &allocate) {
    CallWorkspace workspace(call->problem().device, plan.workspace_bytes(), call->given().workspace, allocate);
    workspace.attach(call->args());
    call->args().stream = reinterpret_cast<void *>(stream);
    return workspace;
}

void attention(const nb::dict &arrays, const nb::dict &fields, uint64_t stream, const nb::object &allocate) {
    AttentionCall call(arrays, fields);
    run_attention(&call, stream, allocate);
}

std::string explain(const nb::dict &arrays, const nb::dict &fields) {
    return plans.find(AttentionCall(arrays, fields).problem())->explain();
}

// Writes `probs` and returns it; where it is None, what empty(shape) gives.
nb::object attention_probs(const nb::dict &arrays, const nb::dict &fields, int32_t mode, nb::object probs,
                           const nb::object &empty, uint64_t stream, const nb::object &allocate) {
    AttentionCall call(arrays, fields);
    const heed_problem &p = call.problem();
    const std::vector<int64_t> shape = {p.batch, p.num_heads, p.max_q_len, p.max_kv_len};
    if (probs.is_none()) probs = empty(nb::tuple(nb::cast(shape)));
    const Array result = import_array("probs", probs, Access::write);
    result.check_shape(shape, "[batch, num_heads, q_len, kv_len]");
    result.check_device(*call.given().q);
    const heed_layout layout = layout_of(result);
    const std::shared_ptr<const Plan> plan = plans.find(p);
    const CallWorkspace workspace = attach_workspace(&call, *plan, stream, allocate);
    const nb::gil_scoped_release unlocked;
    check(heed_attention_probs(plan->get(), &call.args(), static_cast<heed_probs_mode>(mode), &result.tensor, &layout));
    return probs;
}

}  // namespace

std::shared_ptr<const Plan> find_plan(const heed_problem &problem) { return plans.find(problem); }

void run_attention(AttentionCall *call, uint64_t stream, const nb::object &allocate) {
    const std::shared_ptr<const Plan> plan = plans.find(call->problem());
    const CallWorkspace workspace = attach_workspace(call, *plan, stream, allocate);
    const nb::gil_scoped_release unlocked;
    plan->execute(call->args());
    num_calls.fetch_add(1, std::memory_order_relaxed);
}

void bind_attention(nb::module_ &module) {
    module.def("attention", attention, nb::arg("arrays"), nb::arg("fields"), nb::arg("stream") = 0,
               nb::arg("allocate") = nb::none());
    module.def("num_calls", [] { return num_calls.load(); });
    module.def(
        "check_call", [](const nb::dict &arrays, const nb::dict &fields) { AttentionCall(arrays, fields); },
        nb::arg("arrays"), nb::arg("fields"));
    module.def("explain", explain, nb::arg("arrays"), nb::arg("fields"));
    module.def("attention_probs", attention_probs, nb::arg("arrays"), nb::arg("fields"), nb::arg("mode"),
               nb::arg("probs").none(), nb::arg("empty"), nb::arg("stream") = 0, nb::arg("allocate") = nb::none());
}

}  // namespace heed::python
