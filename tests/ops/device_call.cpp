#include "device_call.h"

#include <gtest/gtest.h>

#include <vector>

#include "device.h"
#include "element.h"

namespace heed_test::ops {
namespace {

// Tensors of one call, moved to the device in place: the structs then hold device addresses.
class OnDevice {
public:
    void written(heed_tensor *tensor) { move(tensor, true); }
    void read(heed_tensor *tensor) { move(tensor, false); }

    // Memory of the call on the device alone.
    void workspace(heed_execution *execution, size_t bytes) {
        workspace_ = std::make_unique<DeviceBuffer>(bytes, 0, true);
        execution->workspace = workspace_->data();
        execution->workspace_bytes = bytes;
    }

    template <typename Call>
    heed_status run(heed_execution *execution, const Call &call) {
        execution->device = HEED_CUDA;
        execution->stream = CudaDevice::get().stream();
        const heed_status status = call();
        CudaDevice::get().synchronize();
        EXPECT_TRUE(mirror_.bring_back());
        EXPECT_TRUE(workspace_ == nullptr || workspace_->guards_intact());
        return status;
    }

private:
    // A tensor in the memory of one that was moved already goes with it.
    void move(heed_tensor *tensor, bool written) {
        void *const host = tensor->data;
        if (host == nullptr) return;
        if (mirror_.on_device(host) == host) {
            mirror_.add(host, static_cast<size_t>(tensor->size * element_bytes(tensor->dtype)), written);
        }
        tensor->data = mirror_.on_device(host);
    }

    DeviceMirror mirror_;
    std::unique_ptr<DeviceBuffer> workspace_;
};

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
