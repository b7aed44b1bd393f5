// heed.attention behind its checks: the plan, the workspace, the call without the interpreter's lock.
#include <nanobind/stl/string.h>

#include "bindings.h"
#include "call.h"
#include "errors.h"
#include "plan_cache.h"
#include "workspace.h"

namespace nb = nanobind;

namespace heed::python {
namespace {

PlanCache plans;

// CUDA: the array "workspace", or what allocate(bytes) gives.
Array device_workspace(const AttentionCall &call, const Plan &plan, const nb::object &allocate) {
    if (const Array *given = call.find("workspace")) return *given;
    if (allocate.is_none()) {
        refuse("workspace is missing; for arrays on CUDA that are not PyTorch's it must be %zu bytes there",
               plan.workspace_bytes());
    }
    return import_array("workspace", allocate(plan.workspace_bytes()), Access::write);
}

void attention(const nb::dict &arrays, const nb::dict &fields, uint64_t stream, const nb::object &allocate) {
    AttentionCall call(arrays, fields);
    const std::shared_ptr<const Plan> plan = plans.find(call.problem());
    heed_args &args = call.args();
    args.stream = reinterpret_cast<void *>(stream);
    if (call.problem().device == HEED_CPU) {
        thread_workspace(plan->workspace_bytes()).attach(args);
        const nb::gil_scoped_release unlocked;
        plan->execute(args);
    } else {
        const Array workspace = device_workspace(call, *plan, allocate);
        workspace.check_dtype(HEED_U8);
        workspace.check_packed();
        args.workspace = workspace.tensor.data;
        args.workspace_bytes = static_cast<size_t>(workspace.tensor.size);
        const nb::gil_scoped_release unlocked;
        plan->execute(args);
    }
}

std::string explain(const nb::dict &arrays, const nb::dict &fields) {
    return plans.find(AttentionCall(arrays, fields).problem())->explain();
}

}  // namespace

void bind_attention(nb::module_ &module) {
    module.def("attention", attention, nb::arg("arrays"), nb::arg("fields"), nb::arg("stream") = 0,
               nb::arg("allocate") = nb::none());
    module.def("explain", explain, nb::arg("arrays"), nb::arg("fields"));
}

}  // namespace heed::python
