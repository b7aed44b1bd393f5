// heed_layer_backward.
#include "layer/backward.h"

#include <new>

#include "ranges.h"

namespace heed {
namespace {

constexpr const char *name = "heed_layer_backward";

heed_status backward(const heed_layer &layer, const heed_layer_args &a, const heed_layer_gradients &g) {
    if (layer.device.is_cuda()) {
        return fail(HEED_UNSUPPORTED, "device is HEED_CUDA; heed_layer_backward runs on the CPU only");
    }
    Forward f = {layer, a};
    f.wants_lse = true;
    heed_status status = check_sizes(f);
    if (status || a.batch == 0 || a.q_len == 0) return status;
    status = check_workspace(layer, a.execution);
    if (status) return status;
    LayerRun run = {name, layer, a.execution, {}};
    const auto lay_out = [&](const LayerSizes &sizes) {
        lay_out_memory(layer, sizes, a.execution.workspace, a.execution.workspace_bytes, &run.memory);
    };
    lay_out({a.batch, 0, 0, 0});  // the lengths, which lie in front
    status = read_lengths(f, run.memory);
    if (!status) status = resolve_sizes(&f, run.memory);
    if (!status) status = check_gradients(f, g);
    if (!status) status = make_plan(&f);
    if (status) return status;
    lay_out(f.sizes);
    Backward b = {f, run, g};
    status = take_sources(&b);
    if (!status) status = recompute(&b);
    if (!status) status = output_gradients(&b);
    if (!status) status = attention_gradients(&b);
    if (!status) status = head_gradients(&b);
    if (!status) status = source_gradients(&b, &b.x);
    if (!status) status = source_gradients(&b, &b.memory);
    return status ? status : add_gradients(&b);
}

}  // namespace
}  // namespace heed

extern "C" heed_status heed_layer_backward(const heed_layer *layer, const heed_layer_args *args,
                                           const heed_layer_gradients *gradients) {
    using heed::fail;
    if (layer == nullptr) return fail(HEED_INVALID_ARGUMENT, "heed_layer_backward: layer is NULL");
    if (args == nullptr) return fail(HEED_INVALID_ARGUMENT, "heed_layer_backward: args is NULL");
    if (gradients == nullptr) return fail(HEED_INVALID_ARGUMENT, "heed_layer_backward: gradients is NULL");
    heed_status status = heed::check_struct_size("heed_layer_args", args->struct_size, sizeof(heed_layer_args));
    if (!status) {
        status = heed::check_struct_size("heed_layer_gradients", gradients->struct_size, sizeof(heed_layer_gradients));
    }
    if (status) return status;
    try {
        heed_layer_args copy = *args;
        const heed_layer_gradients wanted = *gradients;
        if (copy.execution.num_threads == 0) copy.execution.num_threads = layer->config.max_threads;
        return heed::backward(*layer, copy, wanted);
    } catch (const std::bad_alloc &) {
        return fail(HEED_OUT_OF_MEMORY, "heed_layer_backward: out of memory");
    }
}
