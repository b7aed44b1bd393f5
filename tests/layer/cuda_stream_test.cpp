// Layers on CUDA: on the caller's stream and in its context, in graphs; their memory.
#include <thread>

#include "tests/layer/cuda_layer.h"
#include "tests/layer/training_call.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

// A graph of a call gives what the call gives, for other tokens too; the first call of a kernel may be a captured one.
TEST_F(CudaLayer, ForwardIsCapturedIntoAGraph) {
    SmallLayer small = layer_with_everything(HEED_F32, HEED_QK_NORM_HEAD);
    const Elements weight(HEED_F32, SmallLayer::head_dim, 41);
    small.weights.q_norm_weight = small.weights.k_norm_weight = weight.tensor();
    const heed::Layer layer = small.make();
    const CudaDevice &device = CudaDevice::get();
    void *const stream = device.make_stream();
    const int32_t lens[] = {20, 11};
    DeviceCall call(layer, 2, 20, stream), other(layer, 2, 20, stream, 8);
    call.args.q_lens = other.args.q_lens = lens;
    void *const graph = device.capture(stream, [&] { call.enqueue(); });
    for (const uint64_t seed : {7, 8}) {
        const Elements x(HEED_F32, 2 * 20 * SmallLayer::dim_in, seed);
        call.set_x(x);
        other.set_x(x);
        device.replay(graph, stream);
        const std::vector<float> y = call.wait();
        other.enqueue();
        EXPECT_EQ(y, other.wait());
    }
}

// A graph of a backward call adds to the gradients at each replay what the call adds.
TEST_F(CudaLayer, BackwardIsCapturedIntoAGraph) {
    for (const bool cross : {false, true}) {
        const TrainedLayer weights(cross);
        const heed::Layer layer = weights.make();
        TrainingCall captured(weights, layer), twice(weights, layer);
        const CudaDevice &device = CudaDevice::get();
        const heed_status status = captured.status(
            [&](const heed_layer *l, const heed_layer_args *args, const heed_layer_gradients *gradients) {
                heed_status result = HEED_OK;
                void *const stream = args->execution.stream;
                void *const graph = device.capture(stream, [&] { result = heed_layer_backward(l, args, gradients); });
                for (int repeat = 0; repeat < 2; repeat++) device.replay(graph, stream);
                return result;
            });
        ASSERT_EQ(status, HEED_OK) << heed_last_error();
        for (int repeat = 0; repeat < 2; repeat++) ASSERT_EQ(twice.status(), HEED_OK) << heed_last_error();
        for (size_t n = 0; n < captured.count(); n++) EXPECT_EQ(captured.result(n), twice.result(n)) << n;
    }
}

// A step's graph holds the lengths of its capture: replayed, it writes the same slots again.
TEST_F(CudaLayer, AGraphOfAStepRepeatsIt) {
    const heed::Layer layer = SmallLayer().make();
    const CudaDevice &device = CudaDevice::get();
    void *const stream = device.make_stream();
    heed::Cache cache(layer, cache_config(HEED_KV_CONTIGUOUS));
    DeviceCall prompt(layer, 2, 9, stream), step(layer, 2, 1, stream, 8);
    prompt.args.cache = step.args.cache = cache.get();
    prompt.enqueue();
    step.enqueue();
    const std::vector<float> expected = step.wait();
    for (int32_t b = 0; b < 2; b++) cache.truncate(b, 9);
    void *const graph = device.capture(stream, [&] { step.enqueue(); });
    EXPECT_EQ(cache.view().kv_lens[0], 10);
    for (int32_t repeat = 0; repeat < 2; repeat++) {
        device.replay(graph, stream);
        EXPECT_EQ(step.wait(), expected);
    }
}

// One layer, calls in two threads on streams of their own, each with its workspace and cache.
TEST_F(CudaLayer, StreamsRunAtOnce) {
    const heed::Layer layer = SmallLayer().make();
    std::vector<float> expected[2];
    for (uint64_t n = 0; n < 2; n++) {
        DeviceCall alone(layer, 2, 20, CudaDevice::get().stream(), n);
        alone.enqueue();
        expected[n] = alone.wait();
    }
    std::vector<std::thread> threads;
    for (uint64_t n = 0; n < 2; n++) {
        threads.emplace_back([&layer, &expected, n] {
            void *const stream = CudaDevice::get().make_stream();
            heed::Cache cache(layer, cache_config(HEED_KV_CONTIGUOUS));
            DeviceCall call(layer, 2, 20, stream, n);
            CudaDevice::get().set_current(nullptr);  // the stream's context serves
            for (int32_t repeat = 0; repeat < 5; repeat++) {
                call.args.cache = repeat % 2 == 0 ? cache.get() : nullptr;
                cache.reset();
                call.enqueue();
                expect_near(call.wait(), expected[n], f32_bound);
                CudaDevice::get().set_current(nullptr);
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
}

TEST_F(CudaLayer, ContextsAreKeptApart) {
    const CudaDevice &device = CudaDevice::get();
    const SmallLayer small;
    const heed::Layer layer = small.make();
    void *const context = device.make_context();
    device.set_current(nullptr);
    heed_layer *none = nullptr;
    EXPECT_EQ(heed_layer_create(&small.config, &small.weights, &none), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("no CUDA context is current"));
    device.set_current(context);
    {
        const heed::Layer other(small.config, small.weights);
        const heed::Cache cache(other, cache_config(HEED_KV_CONTIGUOUS));
        DeviceCall call(layer, 2, 5, device.stream());
        call.args.cache = cache.get();
        EXPECT_EQ(heed_layer_forward(layer.get(), &call.args), HEED_INVALID_ARGUMENT);
        EXPECT_THAT(heed_last_error(), HasSubstr("cache is of layers of another CUDA context"));
        call.args.cache = nullptr;
        EXPECT_EQ(heed_layer_forward(other.get(), &call.args), HEED_INVALID_ARGUMENT);
        EXPECT_THAT(heed_last_error(), HasSubstr("execution.stream is of another CUDA context"));
        SmallLayer on_host;
        on_host.config.device = HEED_CPU;
        const heed::Layer cpu(on_host.config, on_host.weights);
        const heed::Cache host(cpu, cache_config(HEED_KV_CONTIGUOUS));
        call.args.cache = host.get();
        EXPECT_EQ(heed_layer_forward(layer.get(), &call.args), HEED_INVALID_ARGUMENT);
        EXPECT_THAT(heed_last_error(), HasSubstr("cache is of layers on the CPU; this layer is on CUDA"));
    }
    enter_test_device();
}

// Whatever context is current, a layer and its caches take and give back memory of their own.
TEST_F(CudaLayer, MemoryComesBack) {
    const CudaDevice &device = CudaDevice::get();
    SmallLayer small;
    small.config.max_kv_len = 1 << 16;
    const auto use = [&] {
        const heed::Layer layer = small.make();
        heed::CacheConfig config = cache_config(HEED_KV_CONTIGUOUS);
        config.capacity = 1 << 16;
        device.set_current(nullptr);
        heed::Cache cache(layer, config);
        heed_cache *failed = nullptr;
        config.batch = 1 << 20;
        EXPECT_EQ(heed_cache_create(layer.get(), &config, &failed), HEED_OUT_OF_MEMORY);
        return device.free_bytes();
    };
    const size_t before = device.free_bytes(), during = use();
    EXPECT_GE(before - during, size_t{2} * 2 * (16 + 12) * 4 << 16);
    EXPECT_GE(device.free_bytes() + (8 << 20), before);  // the driver keeps a few small blocks
}

}  // namespace
}  // namespace heed_test
