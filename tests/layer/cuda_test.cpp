// Layers on CUDA: what the same layer on the CPU gives, on the caller's stream and in its context, in graphs.
#include <thread>

#include "small_layer.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

class CudaLayer : public testing::Test {
protected:
    void SetUp() override {
        if (test_device() == HEED_CPU) GTEST_SKIP() << "for CUDA";
        enter_test_device();
    }
};

// The same call on a layer of either device.
struct Twin {
    explicit Twin(SmallLayer small) : cuda(small.make()), cpu(on_cpu(&small)) {}

    static heed::Layer on_cpu(SmallLayer *small) {
        small->config.device = HEED_CPU;
        return heed::Layer(small->config, small->weights);
    }
    const heed::Layer cuda, cpu;
};

// The call of `cuda` on the CPU's layer, with a cache of its.
std::vector<float> run_on_cpu(const Twin &twin, const GuardedCall &cuda, heed_cache *cache) {
    const heed::Workspace workspace = twin.cpu.make_workspace();
    heed_layer_args args = cuda.args;
    const int64_t y_bytes = args.y.size * element_bytes(args.y.dtype);
    const GuardedBuffer y(static_cast<size_t>(y_bytes), Flush::rear);
    args.x = cuda.x.tensor();
    args.y.data = y.data();
    args.cache = cache;
    args.execution = {};
    workspace.attach(args.execution);
    EXPECT_EQ(heed_layer_forward(twin.cpu.get(), &args), HEED_OK) << heed_last_error();
    std::vector<float> values;
    for (int64_t i = 0; i < args.y.size; i++) {
        values.push_back(args.y.dtype == HEED_F32
                             ? static_cast<const float *>(y.data())[i]
                             : from_bits(args.y.dtype, static_cast<const uint16_t *>(y.data())[i]));
    }
    return values;
}

// Roundings between the steps fall either way: some units of the type.
double bound_of(heed_dtype dtype) { return dtype == HEED_F32 ? f32_bound : dtype == HEED_F16 ? 0x1p-8 : 0x1p-5; }

SmallLayer layer_with_everything(heed_dtype dtype, heed_qk_norm norm) {
    SmallLayer small(dtype);
    small.add_rope();
    small.config.clip_qkv = 1;
    small.config.softcap = 5;
    small.config.qk_norm = norm;
    return small;
}

// Steps over a cache, of sequences of their own lengths, by a layer that clips, normalises and rotates.
TEST_F(CudaLayer, GivesWhatTheCpuGives) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
            if (!has_rows(dtype, dtype, storage, HEED_FEATURE_SOFTCAP)) continue;
            SCOPED_TRACE(std::string(dtype_name(dtype)) + (storage == HEED_KV_PAGED ? " paged" : ""));
            SmallLayer small = layer_with_everything(dtype, HEED_QK_NORM_HEAD);
            const Elements weight(dtype, SmallLayer::head_dim, 41), bias(dtype, SmallLayer::head_dim, 42);
            small.weights.q_norm_weight = small.weights.k_norm_weight = weight.tensor();
            small.weights.q_norm_bias = bias.tensor();
            const Twin twin(small);
            const heed::Cache ours(twin.cuda, cache_config(storage, dtype)),
                theirs(twin.cpu, cache_config(storage, dtype));
            for (const int32_t q_len : {17, 1, 5, 1}) {
                GuardedCall call(twin.cuda, dtype, 2, q_len, static_cast<uint64_t>(q_len));
                const int32_t lens[] = {q_len, q_len / 2};
                call.args.q_lens = lens;
                call.args.cache = ours.get();
                expect_near(call.run(), run_on_cpu(twin, call, theirs.get()), bound_of(dtype));
                EXPECT_EQ(ours.view().kv_lens[1], theirs.view().kv_lens[1]);
            }
        }
    }
}

// Norms of whole rows, biases, masks and paddings, one by one and all together, and the probabilities.
TEST_F(CudaLayer, ScoresAreTheCpus) {
    SmallLayer small = layer_with_everything(HEED_F32, HEED_QK_NORM_MODEL);
    const Elements q_weight(HEED_F32, 64, 43), k_weight(HEED_F32, 32, 44), bias(HEED_F32, 2 * 20 * 20, 45);
    small.weights.q_norm_weight = q_weight.tensor();
    small.weights.k_norm_weight = k_weight.tensor();
    const Twin twin(small);
    Rng rng(46);
    std::vector<uint8_t> mask(2 * 4 * 20 * 20), padding(2 * 20);
    for (uint8_t &x : mask) x = rng.chance(0.7);
    for (uint8_t &x : padding) x = rng.chance(0.7);
    for (int32_t given = 0; given < 8; given++) {
        SCOPED_TRACE(given);
        GuardedCall call(twin.cuda, HEED_F32, 2, 20);
        std::vector<float> probs(2 * 4 * 20 * 20, NAN), expected(probs.size(), NAN);
        if (given & 1) call.args.mask = heed::tensor(mask.data(), mask.size());
        if (given & 2) call.args.key_padding = heed::tensor(padding.data(), padding.size());
        if (given & 4) {
            call.args.bias = bias.tensor();
            call.args.bias_shape[1] = 1;
        }
        call.add_device_workspace(2 * 4 * 20 * 20);
        call.args.probs = heed::tensor(probs.data(), probs.size());
        const std::vector<float> y = call.run();
        call.args.probs = heed::tensor(expected.data(), expected.size());
        expect_near(y, run_on_cpu(twin, call, nullptr), f32_bound);
        expect_near(probs, expected, f32_bound);
    }
    GuardedCall call(twin.cuda, HEED_F32, 2, 20);
    call.args.mask = heed::tensor(mask.data(), mask.size());
    call.args.key_padding = heed::tensor(padding.data(), padding.size());
    call.args.bias = bias.tensor();
    call.args.bias_shape[1] = 1;
    EXPECT_EQ(call.status(), HEED_WORKSPACE_TOO_SMALL);
    EXPECT_THAT(heed_last_error(), HasSubstr("on CUDA mask, key_padding and bias together need the layer's"));
    EXPECT_TRUE(call.y_untouched());
}

TEST_F(CudaLayer, DropsWhatTheCpuDrops) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        if (!has_rows(dtype, dtype, HEED_KV_CONTIGUOUS, HEED_FEATURE_DROPOUT)) continue;
        SmallLayer small(dtype);
        small.config.dropout_p = 0.4f;
        const Twin twin(small);
        GuardedCall call(twin.cuda, dtype, 2, 20);
        const std::vector<float> kept = call.run();
        call.args.training = true;
        call.args.dropout_seed = 0x123456789abcdef0;
        call.args.dropout_offset = 99;
        const std::vector<float> y = call.run();
        EXPECT_NE(y, kept);
        expect_near(y, run_on_cpu(twin, call, nullptr), bound_of(dtype));
    }
}

TEST_F(CudaLayer, CrossAttentionFromAPreparedCache) {
    SmallLayer small;
    small.config.cross = true;
    small.config.causal = false;
    const Twin twin(small);
    const Elements memory(HEED_F32, 2 * 9 * SmallLayer::dim_in, 31);
    const heed_tensor tokens = memory.tensor();
    const heed::Cache ours(twin.cuda, cache_config(HEED_KV_CONTIGUOUS)), theirs(twin.cpu, cache_config(HEED_KV_PAGED));
    const int32_t lens[] = {9, 4};
    GuardedCall call(twin.cuda, HEED_F32, 2, 5);
    ASSERT_EQ(call_prepare(twin.cuda.get(), ours.get(), 2, 9, &tokens, lens, &call.args.execution), HEED_OK)
        << heed_last_error();
    heed_execution run = {};
    const heed::Workspace workspace = twin.cpu.make_workspace();
    workspace.attach(run);
    ASSERT_EQ(heed_layer_prepare(twin.cpu.get(), theirs.get(), 2, 9, &tokens, lens, &run), HEED_OK);
    call.args.cache = ours.get();
    expect_near(call.run(), run_on_cpu(twin, call, theirs.get()), f32_bound);
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

// A graph of a call gives what the call gives, for other tokens too; the first call of a row may be a captured one.
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
        const Twin twin{SmallLayer()};
        const heed::Cache host(twin.cpu, cache_config(HEED_KV_CONTIGUOUS));
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
