// Tests of layers on CUDA.
#pragma once

#include "tests/layer/small_layer.h"

namespace heed_test {

class CudaLayer : public testing::Test {
protected:
    void SetUp() override {
        if (test_device() == HEED_CPU) GTEST_SKIP() << "for CUDA";
        enter_test_device();
    }
};

// Clips, normalises and rotates; the weights of the norm are the caller's.
inline SmallLayer layer_with_everything(heed_dtype dtype, heed_qk_norm norm) {
    SmallLayer small(dtype);
    small.add_rope();
    small.config.clip_qkv = 1;
    small.config.softcap = 5;
    small.config.qk_norm = norm;
    return small;
}

// A layer's call on memory that stays on the device.
class DeviceCall {
public:
    DeviceCall(const heed::Layer &layer, int32_t batch, int32_t q_len, void *stream, uint64_t seed = 7)
        : layer_(layer), host_(layer, HEED_F32, batch, q_len, seed), x_(bytes_of(host_.x.tensor()), 0, false),
          y_(bytes_of(host_.args.y), 0, true), workspace_(heed_layer_workspace_bytes(layer.get()), 0, true) {
        args = host_.args;
        args.x = {x_.data(), static_cast<int64_t>(host_.x.size()), HEED_F32};
        args.y.data = y_.data();
        args.execution.stream = stream;
        args.execution.workspace = workspace_.data();
        set_x(host_.x);
    }

    heed_layer_args args;

    void set_x(const Elements &x) {
        CudaDevice::get().copy_to_device(x_.data(), x.tensor().data, bytes_of(x.tensor()));
    }
    void enqueue() const { EXPECT_EQ(heed_layer_forward(layer_.get(), &args), HEED_OK) << heed_last_error(); }
    std::vector<float> wait() const {
        std::vector<float> y(static_cast<size_t>(args.y.size));
        CudaDevice::get().synchronize(args.execution.stream);
        CudaDevice::get().copy_to_host(y.data(), y_.data(), bytes_of(args.y));
        EXPECT_TRUE(y_.guards_intact() && workspace_.guards_intact());
        return y;
    }

private:
    static size_t bytes_of(const heed_tensor &tensor) { return static_cast<size_t>(tensor.size * 4); }

    const heed::Layer &layer_;
    const GuardedCall host_;
    const DeviceBuffer x_, y_, workspace_;
};

}  // namespace heed_test
