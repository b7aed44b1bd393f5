#include "tests/ops/device_call.h"

#include <vector>

#include "tests/support/on_device.h"

namespace heed_test::ops {
namespace {

void move_tables(OnDevice *device, heed_rope_tables *tables) {
    device->read(&tables->cos);
    device->read(&tables->sin);
}

void move_cache(OnDevice *device, heed_kv_view *cache) {
    device->written(&cache->k);
    device->written(&cache->v);
    if (cache->dtype != HEED_I8) return;
    device->written(&cache->k_scale);
    device->written(&cache->v_scale);
}

}  // namespace

heed_status call_rope(const heed_rope_args *args) {
    if (test_device() == HEED_CPU) return heed_rope(args);
    heed_rope_args a = *args;
    OnDevice device;
    device.written(&a.out);
    device.read(&a.x);
    move_tables(&device, &a.tables);
    return device.run(&a.execution, [&] { return heed_rope(&a); });
}

heed_status call_kv_append(const heed_kv_append_args *args) {
    if (test_device() == HEED_CPU) return heed_kv_append(args);
    heed_kv_append_args a = *args;
    heed_rope_tables rope = {};
    OnDevice device;
    move_cache(&device, &a.cache);
    device.read(&a.k_new);
    device.read(&a.v_new);
    if (a.rope != nullptr) {
        rope = *a.rope;
        move_tables(&device, &rope);
        a.rope = &rope;
    }
    return device.run(&a.execution, [&] { return heed_kv_append(&a); });
}

heed_status call_kv_copy(const heed_kv_view *cache, const heed_kv_range *ranges, int32_t num_ranges,
                         const heed_execution *execution) {
    if (test_device() == HEED_CPU) return heed_kv_copy(cache, ranges, num_ranges, execution);
    heed_kv_view view = *cache;
    heed_execution on_cuda = {};
    OnDevice device;
    move_cache(&device, &view);
    device.workspace(&on_cuda, 64 << 10);
    return device.run(&on_cuda, [&] { return heed_kv_copy(&view, ranges, num_ranges, &on_cuda); });
}

heed_status call_merge_states(const heed_merge_args *args) {
    if (test_device() == HEED_CPU) return heed_merge_states(args);
    heed_merge_args a = *args;
    std::vector<heed_tensor> outs(a.outs, a.outs + a.num_states), lses(a.lses, a.lses + a.num_states);
    OnDevice device;
    device.written(&a.out);
    device.written(&a.lse);
    for (heed_tensor &x : outs) device.read(&x);
    for (heed_tensor &x : lses) device.read(&x);
    heed_tensor sink = {const_cast<float *>(a.sink), a.num_heads, HEED_F32};
    device.read(&sink);
    a.sink = static_cast<const float *>(sink.data);
    a.outs = outs.data();
    a.lses = lses.data();
    return device.run(&a.execution, [&] { return heed_merge_states(&a); });
}

heed_status call_linear_on_cuda(heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor &weight,
                                int64_t row_stride, const heed_tensor *bias, const heed_linear_args &args) {
    heed_linear_args a = args;
    std::vector<heed_linear_out> outs(a.outs, a.outs + a.num_outs);
    std::vector<heed_rope_tables> tables(outs.size());
    OnDevice device;
    for (size_t i = 0; i < outs.size(); i++) {
        device.written(&outs[i].out);
        if (outs[i].rope == nullptr) continue;
        tables[i] = *outs[i].rope;
        move_tables(&device, &tables[i]);
        outs[i].rope = &tables[i];
    }
    a.outs = outs.data();
    device.read(&a.x);
    heed_tensor w = weight, b = bias == nullptr ? heed_tensor{} : *bias;
    device.read(&w);
    device.read(&b);
    heed_linear_weights *weights = nullptr;
    heed_status status =
        heed_linear_on_device(dtype, dim_in, dim_out, &w, row_stride, bias == nullptr ? nullptr : &b, &weights);
    if (!status) status = device.run(&a.execution, [&] { return heed_linear(weights, &a); });
    heed_linear_weights_destroy(weights);
    return status;
}

}  // namespace heed_test::ops
