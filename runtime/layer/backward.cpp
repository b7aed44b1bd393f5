// heed_layer_backward.
#include "runtime/layer/backward.h"

#include "runtime/api.h"
#include "runtime/ranges.h"

namespace heed {
namespace {

constexpr const char *name = "heed_layer_backward";

// What the steps of every gradient launch.
constexpr std::initializer_list<Op> gradient_ops = {
    Op::add,       Op::clip_gradient,     Op::column_sums, Op::copy_rows, Op::layer_norm_gradient,
    Op::transpose, Op::attention_backward};

heed_status take_gradients(Backward *b, HeapArray<char> *heap) {
    const heed_layer &layer = b->f.layer;
    const auto attention_bytes = static_cast<int64_t>(heed_attention_backward_workspace_bytes(b->f.plan.get()));
    const auto lay_out = [&](void *base) {
        return lay_out_gradients(layer, b->f.sizes, wants_of(*b), attention_bytes, base, &b->m);
    };
    const int64_t forward_bytes = static_cast<int64_t>(layer.workspace_bytes) + b->f.sizes.combined;
    char *base = nullptr;
    const heed_status status = b->f.backend().take_temporary(
        {name, b->run.execution, forward_bytes, b->f.gradient_bytes}, lay_out(nullptr), heap, &base);
    if (!status) lay_out(base);
    return status;
}

heed_status backward(const heed_layer &layer, const heed_layer_args &a, const heed_layer_gradients &g) {
    Forward f = {layer, a};
    f.wants_lse = true;
    f.gradient_bytes = static_cast<int64_t>(layer.backward_workspace_bytes - layer.workspace_bytes);
    heed_status status = check_sizes(f);
    if (status || a.batch == 0 || a.q_len == 0) return status;
    status = check_workspace(layer.backward_workspace_bytes, a.execution);
    if (!status) status = f.backend().check_launches(gradient_ops, layer.config.dtype);
    if (status) return status;
    DeviceScope scope;
    HeapArray<char> lists, gradients;
    LayerRun run = {name, layer, a.execution, {}};
    status = f.backend().enter_call(layer.device, a.execution, &scope);
    if (!status) status = take_lists(layer, name, {a.batch, a.q_len, 0, 0}, &lists, &run.memory);
    if (status) return status;
    const auto lay_out = [&](const LayerSizes &sizes) {
        lay_out_memory(layer, sizes, a.execution.workspace, layer.workspace_bytes + sizes.combined, &run.memory);
    };
    lay_out({a.batch, 0, 0, 0});  // the lengths, which are in front
    Backward b = {f, run, g};
    status = read_lengths(f, run.memory);
    if (!status) status = resolve_sizes(&f, run.memory);
    if (!status) status = check_gradients(&b);
    if (!status) status = make_plan(&f);
    if (!status) status = take_gradients(&b, &gradients);
    if (status) return status;
    lay_out(f.sizes);
    status = take_sources(&b);
    if (!status) status = recompute(&b);
    if (!status) status = output_gradients(&b);
    if (!status) status = attention_gradients(&b);
    if (!status) status = head_gradients(&b);
    if (!status) status = source_gradients(&b, &b.x);
    if (!status) status = source_gradients(&b, &b.context);
    return status ? status : add_gradients(&b);
}

}  // namespace
}  // namespace heed

extern "C" size_t heed_layer_backward_workspace_bytes(const heed_layer *layer) {
    const heed::DefaultFloatEnvironment environment;
    return layer == nullptr ? 0 : layer->backward_workspace_bytes;
}

extern "C" heed_status heed_layer_backward(const heed_layer *layer, const heed_layer_args *args,
                                           const heed_layer_gradients *gradients) {
    return heed::run_api(heed::name, [&] {
        heed_status status = heed::check_given(heed::name, "layer", layer);
        if (!status) status = heed::check_given(heed::name, "args", "heed_layer_args", args);
        if (!status) status = heed::check_given(heed::name, "gradients", "heed_layer_gradients", gradients);
        if (status) return status;
        const heed_layer_gradients wanted = *gradients;
        return heed::backward(*layer, heed::copy_of(*args, *layer), wanted);
    });
}
