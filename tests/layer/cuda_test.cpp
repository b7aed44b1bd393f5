// Layers on CUDA give what the same layer on the CPU gives.
#include "tests/layer/cuda_layer.h"
#include "tests/layer/training_call.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

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

// Steps over a cache, of sequences of their own lengths, by a layer that clips, normalises and rotates.
TEST_F(CudaLayer, GivesWhatTheCpuGives) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
            if (!has_kernels(dtype, dtype, storage, HEED_FEATURE_SOFTCAP)) continue;
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

// Every input of layers with all that they know: key padding hides tokens together with a mask and a bias, whose
// gradient has gaps, which stay as they are.
TEST_F(CudaLayer, GradientsAreTheCpus) {
    for (const bool cross : {false, true}) {
        for (const heed_qk_norm norm : {HEED_QK_NORM_HEAD, HEED_QK_NORM_MODEL}) {
            TrainedLayer weights(cross, norm);
            const heed::Layer cuda = weights.make();
            weights.config.device = HEED_CPU;
            const heed::Layer cpu(weights.config, weights.weights);
            TrainingCall ours(weights, cuda), theirs(weights, cpu);
            theirs.args.execution.device = HEED_CPU;
            const int32_t q_len = TrainingCall::q_len, keys = cross ? TrainingCall::context_len : q_len;
            const int64_t line = keys + 3, lines = SmallLayer::heads * q_len;
            const Elements bias(HEED_F32, lines * line, 51);
            std::vector<float> dbias[2];
            std::vector<uint8_t> mask(static_cast<size_t>(2 * q_len * keys)), padding(static_cast<size_t>(2 * keys), 1);
            Rng rng(52);
            for (uint8_t &x : mask) x = rng.chance(0.8);
            padding[5] = 0;
            for (TrainingCall *call : {&ours, &theirs}) {
                std::vector<float> &gradient = dbias[call == &theirs];
                gradient.assign(bias.size(), 1);
                call->args.mask = heed::tensor(mask.data(), mask.size());
                call->args.mask_shape[1] = 1;
                call->args.key_padding = heed::tensor(padding.data(), padding.size());
                call->args.bias = bias.tensor();
                call->args.bias_layout = {{0, line * q_len, line, 1}};
                call->gradients.dbias = heed::tensor(gradient.data(), gradient.size());
            }
            ours.args.execution.workspace_bytes =
                heed_layer_backward_workspace_bytes(cuda.get()) + mask.size() * 4 + 128;
            ASSERT_EQ(ours.status(), HEED_OK) << heed_last_error();
            ASSERT_EQ(heed_layer_backward(cpu.get(), &theirs.args, &theirs.gradients), HEED_OK) << heed_last_error();
            expect_near(dbias[0], dbias[1], 4 * f32_bound);
            EXPECT_EQ(dbias[0][static_cast<size_t>(line - 1)], 1);
            for (size_t n = 0; n < ours.count(); n++) {
                SCOPED_TRACE(n);
                expect_near(ours.result(n), theirs.result(n), 4 * f32_bound);
            }
        }
    }
}

TEST_F(CudaLayer, GradientsNeedRoomForTheBias) {
    const TrainedLayer weights(false);
    const heed::Layer layer = weights.make();
    TrainingCall call(weights, layer);
    const size_t bytes = heed_layer_backward_workspace_bytes(layer.get());
    EXPECT_GT(bytes, heed_layer_workspace_bytes(layer.get()));
    call.args.execution.workspace_bytes = bytes;
    EXPECT_EQ(heed_layer_backward(layer.get(), &call.args, &call.gradients), HEED_WORKSPACE_TOO_SMALL);
    EXPECT_THAT(heed_last_error(), HasSubstr("heed_layer_backward needs " + std::to_string(bytes + 6400)));
    call.args.execution.workspace_bytes = bytes - 1;
    EXPECT_EQ(heed_layer_backward(layer.get(), &call.args, &call.gradients), HEED_WORKSPACE_TOO_SMALL);
    EXPECT_THAT(heed_last_error(), HasSubstr("the layer needs " + std::to_string(bytes)));
    EXPECT_TRUE(call.untouched());
}

TEST_F(CudaLayer, DropsWhatTheCpuDrops) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        if (!has_kernels(dtype, dtype, HEED_KV_CONTIGUOUS, HEED_FEATURE_DROPOUT)) continue;
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
    const Elements context(HEED_F32, 2 * 9 * SmallLayer::dim_in, 31);
    const heed_tensor tokens = context.tensor();
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

}  // namespace
}  // namespace heed_test
