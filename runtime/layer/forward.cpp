// heed_layer_forward.
#include "runtime/layer/forward.h"

#include "runtime/api.h"
#include "runtime/layer/cache.h"
#include "runtime/layer/steps.h"
#include "runtime/ops/probs_call.h"
#include "runtime/ranges.h"

namespace heed {
namespace {

// Rows after the valid ones are zero, in y and in the probabilities.
heed_status clear_padding(const Forward &f, const int32_t *q_lens) {
    const heed_layer_config &c = f.config();
    const heed_layer_args &a = f.a;
    heed_status status = HEED_OK;
    const auto clear = [&](const heed_tensor &tensor, int64_t first, int64_t count) {
        const int64_t bytes = dtype_bytes(tensor.dtype);
        char *const begin = static_cast<char *>(tensor.data) + first * bytes;
        if (status || count == 0) return;
        status = f.backend().clear(a.execution, begin, count * bytes);
    };
    for (int32_t b = 0; a.q_lens != nullptr && b < a.batch; b++) {
        const int64_t valid = q_lens[b], rest = a.q_len - valid;
        clear(a.y, (int64_t{b} * a.q_len + valid) * c.dim_out, rest * c.dim_out);
        for (int64_t h = 0; a.probs.data != nullptr && h < c.num_heads; h++) {
            clear(a.probs, ((int64_t{b} * c.num_heads + h) * a.q_len + valid) * f.longest, rest * f.longest);
        }
    }
    return status;
}

}  // namespace

heed_status project_inputs(const Forward &f, const LayerRun &run, const void *x, const void *context) {
    const bool cross = f.config().cross;
    const heed_status status = project(run, x, f.lines(), f.line_len, true, !cross);
    if (status || !cross || !f.projects_kv()) return status;
    return project(run, context, f.a.batch, f.a.context_len, false, true);
}

heed_status shape_heads(const Forward &f, const LayerRun &run) {
    const heed_layer_args &a = f.a;
    const bool rotates = f.config().rotary_dim > 0;
    heed_status status = normalise(run, true, f.tokens());
    if (!status && f.projects_kv()) status = normalise(run, false, f.new_tokens());
    if (!status && rotates) status = rotate(run, run.memory.q, f.config().num_heads, f.lines(), f.line_len);
    if (!status && rotates && a.cache == nullptr) {
        status = rotate(run, run.memory.k, f.config().num_kv_heads, f.lines(), f.line_len);
    }
    return status;
}

namespace {

// Everything after the checks. On failure the caller takes back what joined the cache.
heed_status run_forward(Forward *f, const LayerRun &run) {
    const heed_layer_config &c = f->config();
    const heed_layer_args &a = f->a;
    fill_lengths(*f, run.memory);
    heed_status status = fill_scores(f, run.memory);
    if (!status && a.cache != nullptr && !c.cross) status = a.cache->reserve(run.memory.new_lens);
    if (!status) status = project_inputs(*f, run, a.x.data, a.context.data);
    if (!status) status = shape_heads(*f, run);
    if (!status && a.cache != nullptr && !c.cross) status = append(run, a.cache, a.q_len);
    const heed_args args = attention_args(*f, run.memory);
    if (!status) {
        status =
            a.probs.data == nullptr ? heed_execute(f->plan.get(), &args) : execute_with_probs(*f->plan, args, a.probs);
    }
    if (!status) status = project_out(run, f->lines(), f->line_len, a.y.data);
    return status ? status : clear_padding(*f, run.memory.new_lens);
}

heed_status forward(const heed_layer &layer, const heed_layer_args &a) {
    Forward f = {layer, a};
    heed_status status = check_sizes(f);
    if (status || a.batch == 0 || a.q_len == 0) return status;
    status = check_workspace(layer.workspace_bytes, a.execution);
    if (status) return status;
    DeviceScope scope;
    HeapArray<char> lists;
    LayerRun run = {"heed_layer_forward", layer, a.execution, {}};
    status = f.backend().enter_call(layer.device, a.execution, &scope);
    if (!status) status = take_lists(layer, run.name, {a.batch, a.q_len, 0, 0}, &lists, &run.memory);
    if (status) return status;
    const auto lay_out = [&](const LayerSizes &sizes) {
        return lay_out_memory(layer, sizes, a.execution.workspace, a.execution.workspace_bytes, &run.memory);
    };
    lay_out({a.batch, 0, 0, 0});  // the lengths, which are in front
    status = read_lengths(f, run.memory);
    if (!status) status = resolve_sizes(&f, run.memory);
    if (!status) status = check_tensors(f);
    if (status || f.line_len == 0) return status;
    status = make_plan(&f);
    if (status) return status;
    if (lay_out(f.sizes) > static_cast<int64_t>(layer.workspace_bytes) + f.sizes.combined) {
        return fail(HEED_INTERNAL, "heed_layer_forward: the layer's workspace is too small for its own largest call");
    }
    if (a.cache != nullptr) a.cache->stream = a.execution.stream;
    status = run_forward(&f, run);
    if (status && a.cache != nullptr && !layer.config.cross) {
        for (int32_t b = 0; b < a.batch; b++) a.cache->truncate(b, run.memory.past[b]);
    }
    return status;
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_layer_forward(const heed_layer *layer, const heed_layer_args *args) {
    constexpr const char *function = "heed_layer_forward";
    return heed::run_api(function, [&] {
        heed_status status = heed::check_given(function, "layer", layer);
        if (!status) status = heed::check_given(function, "args", "heed_layer_args", args);
        return status ? status : heed::forward(*layer, heed::copy_of(*args, *layer));
    });
}
