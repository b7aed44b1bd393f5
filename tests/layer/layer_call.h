// Layers on the device of the tests: on CUDA with copies of a call's tensors and a workspace there.
#pragma once

#include <functional>

#include "tests/support/on_device.h"
#include "tests/support/table_kernels.h"

namespace heed_test {

// Makes the device's context current, which a layer on CUDA takes for its own.
inline void enter_test_device() {
    if (test_device() == HEED_CUDA) CudaDevice::get().synchronize();
}

inline void move_workspace(OnDevice *device, heed_execution *execution) {
    if (execution->workspace != nullptr) device->workspace(execution, execution->workspace_bytes);
    execution->stream = CudaDevice::get().stream();
}

inline heed_status call_forward(const heed_layer *layer, const heed_layer_args *args) {
    if (test_device() == HEED_CPU) return heed_layer_forward(layer, args);
    heed_layer_args a = *args;
    OnDevice device;
    device.written(&a.y);
    device.written(&a.probs);
    for (heed_tensor *tensor : {&a.x, &a.context, &a.mask, &a.bias, &a.key_padding}) device.read(tensor);
    move_workspace(&device, &a.execution);
    return device.run([&] { return heed_layer_forward(layer, &a); });
}

// On CUDA with a workspace that has room for dbias. `run` may do more than the call.
using RunBackward =
    std::function<heed_status(const heed_layer *, const heed_layer_args *, const heed_layer_gradients *)>;
inline heed_status call_backward(const heed_layer *layer, const heed_layer_args *args,
                                 const heed_layer_gradients *gradients, const RunBackward &run = heed_layer_backward) {
    if (test_device() == HEED_CPU) return run(layer, args, gradients);
    heed_layer_args a = *args;
    heed_layer_gradients g = *gradients;
    heed_layer_weights &w = g.dweights;
    OnDevice device;
    for (heed_tensor *tensor :
         {&g.dx, &g.dcontext, &g.dbias, &w.wq, &w.wk, &w.wv, &w.wqkv, &w.wo, &w.bq, &w.bk, &w.bv, &w.bqkv, &w.bo,
          &w.q_norm_weight, &w.q_norm_bias, &w.k_norm_weight, &w.k_norm_bias, &w.sink}) {
        device.written(tensor);
    }
    for (heed_tensor *tensor : {&a.x, &a.context, &a.mask, &a.bias, &a.key_padding, &g.dy}) device.read(tensor);
    const auto dbias_bytes = static_cast<size_t>((g.dbias.size * element_bytes(g.dbias.dtype) + 127) / 128 * 128);
    a.execution.workspace_bytes =
        std::max(a.execution.workspace_bytes, heed_layer_backward_workspace_bytes(layer)) + dbias_bytes;
    move_workspace(&device, &a.execution);
    return device.run([&] { return run(layer, &a, &g); });
}

inline heed_status call_prepare(const heed_layer *layer, heed_cache *cache, int32_t batch, int32_t context_len,
                                const heed_tensor *context, const int32_t *context_lens,
                                const heed_execution *execution) {
    if (test_device() == HEED_CPU) {
        return heed_layer_prepare(layer, cache, batch, context_len, context, context_lens, execution);
    }
    heed_tensor tokens = *context;
    heed_execution run = *execution;
    OnDevice device;
    device.read(&tokens);
    move_workspace(&device, &run);
    return device.run(
        [&] { return heed_layer_prepare(layer, cache, batch, context_len, &tokens, context_lens, &run); });
}

// Whether the program has a kernel for such a cache, of any head dim and with these features, on the device of the
// tests.
inline bool has_kernels(heed_dtype dtype, heed_dtype kv_dtype, heed_kv_storage storage, uint32_t features = 0) {
    const std::vector<TableKernel> kernels = kernels_with(features);
    return std::any_of(kernels.begin(), kernels.end(), [&](const TableKernel &kernel) {
        return kernel.any_head_dim() && kernel.info.dtype == dtype && kernel.info.kv_dtype == kv_dtype &&
               kernel.serves(storage);
    });
}

// Caches that layers of f32 have on the tested device: paged ones where it has kernels for them.
inline std::vector<heed_kv_storage> f32_storages() {
    if (!has_kernels(HEED_F32, HEED_F32, HEED_KV_PAGED)) return {HEED_KV_CONTIGUOUS};
    return {HEED_KV_PAGED, HEED_KV_CONTIGUOUS};
}

#define SKIP_WITHOUT_KERNELS(...)                                                                                      \
    if (!has_kernels(__VA_ARGS__)) GTEST_SKIP() << "no kernel of " #__VA_ARGS__ " is linked for the device"

}  // namespace heed_test
