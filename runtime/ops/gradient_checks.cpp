#include "runtime/ops/gradient_checks.h"

#include <algorithm>
#include <cinttypes>

#include "runtime/inputs.h"
#include "runtime/ranges.h"
#include "runtime/scratch.h"
#include "runtime/status.h"

namespace heed {
namespace {

heed_status check_output(const char *name, const heed_tensor &tensor, heed_dtype dtype, const View &view,
                         MemoryRanges *ranges) {
    if (tensor.data == nullptr) return HEED_OK;
    const Shape shape = {{view.extent[0], view.extent[1], view.extent[2], view.extent[3]}};
    const heed_layout layout = {{view.stride[0], view.stride[1], view.stride[2], view.stride[3]}};
    View written;
    const heed_status status = view.span == 0 ? HEED_OK : make_view(name, shape, layout, Access::write, &written);
    return status ? status : ranges->add(name, tensor, dtype, view.span, Access::write);
}

heed_status check_wanted(const char *name, const heed_tensor &tensor, const char *field, bool has) {
    if (tensor.data == nullptr || has) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "%s.data is not NULL; the problem's %s is false", name, field);
}

}  // namespace

View dbias_view(const heed_problem &p, const ProblemViews &views) {
    View view = views.bias;
    if (!p.has_bias) return View{};
    for (int n = 0; n < 4; n++) {
        if (view.stride[n] == 0 && view.extent[n] > 1) view.extent[n] = 1;
    }
    return view;
}

heed_status check_gradients_supported(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    if (p.kv_dtype == HEED_I8)
        return fail(HEED_UNSUPPORTED, "kv_dtype is i8; %s needs k and v in dtype", backward_function);
    if (p.kv_storage == HEED_KV_PAGED) {
        return fail(HEED_UNSUPPORTED, "kv_storage is paged; %s serves contiguous and varlen keys", backward_function);
    }
    if (!p.want_lse) {
        return fail(HEED_INVALID_ARGUMENT, "want_lse is false; %s recomputes the weights from lse", backward_function);
    }
    return HEED_OK;
}

heed_status check_gradients_memory(const heed_plan &plan, const heed_args &args, const heed_gradients &gradients,
                                   int64_t workspace_bytes) {
    const heed_problem &p = plan.problem;
    const ProblemViews &views = plan.views;
    heed_status status = check_wanted("dbias", gradients.dbias, "has_bias", p.has_bias);
    if (!status) status = check_wanted("dsink", gradients.dsink, "has_sink", p.has_sink);
    MemoryRanges ranges;
    if (!status) status = check_output("dq", gradients.dq, p.dtype, views.q, &ranges);
    if (!status) status = check_output("dk", gradients.dk, p.dtype, views.k, &ranges);
    if (!status) status = check_output("dv", gradients.dv, p.dtype, views.v, &ranges);
    if (!status) status = check_output("dbias", gradients.dbias, p.bias_dtype, dbias_view(p, views), &ranges);
    const View per_head = {{1, 1, 1, p.num_heads}, {0, 0, 0, 1}, p.num_heads};
    if (!status) status = check_output("dsink", gradients.dsink, HEED_F32, per_head, &ranges);
    if (status) return status;
    if (args.workspace_bytes < static_cast<size_t>(workspace_bytes)) {
        return fail(HEED_WORKSPACE_TOO_SMALL, "workspace_bytes is %zu; %s needs %" PRId64, args.workspace_bytes,
                    backward_function, workspace_bytes);
    }
    status =
        ranges.add("workspace", args.workspace, workspace_bytes / scratch_alignment, scratch_alignment, Access::write);
    if (!status && p.metadata_on_device && args.device_status != nullptr) {
        status = ranges.add("device_status", args.device_status, 1, sizeof(int32_t), Access::write);
    }
    if (!status) status = ranges.add("out", args.out, p.dtype, views.out.span, Access::read);
    if (!status) status = ranges.add("lse", args.lse, HEED_F32, views.lse.span, Access::read);
    if (!status) status = ranges.add("dout", gradients.dout, p.dtype, views.out.span, Access::read);
    if (!status) status = add_inputs(p, views, args, Reads::all, &ranges);
    return status ? status : add_score_buffers(*plan.kernel, args, &ranges);
}

}  // namespace heed
