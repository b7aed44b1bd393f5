// What holds for a layer whatever its weights: lengths, masks, types, threads.
#include <thread>

#include "tests/layer/small_layer.h"

namespace heed_test {
namespace {

// The type whose kernels have dropout: on CUDA perhaps not f32.
heed_dtype dtype_with_dropout() {
    return has_kernels(HEED_F32, HEED_F32, HEED_KV_PAGED, HEED_FEATURE_DROPOUT) ? HEED_F32 : HEED_F16;
}

TEST(Layer, NarrowTypesAreNearF32) {
    const SmallLayer wide;
    for (const heed_dtype dtype : {HEED_F16, HEED_BF16}) {
        const SmallLayer small(dtype);
        const heed::Layer layer = small.make(), wide_layer = wide.make();
        GuardedCall narrow(layer, dtype, 2, 20), full(wide_layer, HEED_F32, 2, 20);
        expect_near(narrow.run(), full.run(), dtype == HEED_F16 ? 0x1p-8 : 0x1p-5);
    }
}

// Sequences of their own lengths: each as alone, rows after it zero, whatever the padding of x holds.
TEST(Layer, QueryLengths) {
    const SmallLayer small;
    const heed::Layer layer = small.make();
    const int32_t lens[] = {7, 0, 20};
    for (const bool cached : {false, true}) {
        heed::Cache cache(layer, cache_config(f32_storages().front(), HEED_F32, 3));
        GuardedCall ragged(layer, HEED_F32, 3, 20);
        const GuardedCall clean(layer, HEED_F32, 3, 20);
        for (size_t i = 0; i < ragged.x.size(); i++) {
            if (static_cast<int32_t>(i / SmallLayer::dim_in % 20) >= lens[i / SmallLayer::dim_in / 20])
                ragged.x.set(i, NAN);
        }
        ragged.args.q_lens = lens;
        if (cached) ragged.args.cache = cache.get();
        const std::vector<float> y = ragged.run();
        for (int32_t b = 0; b < 3; b++) {
            EXPECT_EQ(cache.view().kv_lens[b], cached ? lens[b] : 0);
            for (int32_t t = lens[b]; t < 20; t++) {
                EXPECT_EQ(row_of(y, 20, b, t), std::vector<float>(SmallLayer::dim_out, 0.0f));
            }
            if (lens[b] == 0) continue;
            GuardedCall alone(layer, HEED_F32, 1, lens[b]);
            for (int32_t t = 0; t < lens[b]; t++) alone.take_token(0, t, clean, b, t);
            const std::vector<float> expected = alone.run();
            for (int32_t t = 0; t < lens[b]; t++) {
                expect_near(row_of(y, 20, b, t), row_of(expected, lens[b], 0, t), f32_bound);
            }
        }
    }
}

// A mask, a padding and both with a bias hide what one mask of their conjunction hides.
TEST(Layer, MaskAndPaddingJoin) {
    for (const bool true_hides : {false, true}) {
        SmallLayer small;
        small.config.mask_true_hides = true_hides;
        small.config.causal = false;
        const heed::Layer layer = small.make();
        Rng rng(3);
        std::vector<uint8_t> mask(2 * 20 * 20), padding(2 * 20), joined(mask.size());
        for (uint8_t &x : mask) x = rng.chance(0.7) != true_hides;
        for (uint8_t &x : padding) x = rng.chance(0.7) != true_hides;
        for (size_t i = 0; i < mask.size(); i++) {
            const size_t key = i / 400 * 20 + i % 20;
            joined[i] = true_hides ? mask[i] | padding[key] : mask[i] & padding[key];
        }
        const Elements bias(HEED_F32, 4 * 20, 11);
        for (const bool with_bias : {false, true}) {
            GuardedCall one(layer, HEED_F32, 2, 20), two(layer, HEED_F32, 2, 20);
            for (GuardedCall *call : {&one, &two}) {
                call->args.mask_shape[1] = 1;
                if (!with_bias) continue;
                call->args.bias = bias.tensor();
                call->args.bias_shape[0] = call->args.bias_shape[2] = 1;
            }
            one.args.mask = heed::tensor(mask.data(), mask.size());
            one.args.key_padding = heed::tensor(padding.data(), padding.size());
            one.add_device_workspace(mask.size() + 128);
            two.args.mask = heed::tensor(joined.data(), joined.size());
            EXPECT_EQ(one.run(), two.run()) << true_hides << with_bias;
        }
    }
}

TEST(Layer, KeyLengthsHidePaddingOnTheRight) {
    SmallLayer small;
    small.config.causal = false;
    const heed::Layer layer = small.make();
    const int32_t lens[] = {20, 13};
    std::vector<uint8_t> padding(40, 1);
    std::fill(padding.begin() + 33, padding.end(), uint8_t{0});
    GuardedCall by_length(layer, HEED_F32, 2, 20), by_mask(layer, HEED_F32, 2, 20);
    by_length.args.kv_lens = lens;
    by_mask.args.key_padding = heed::tensor(padding.data(), padding.size());
    expect_near(by_length.run(), by_mask.run(), f32_bound);
}

TEST(Layer, SinksAndSlopes) {
    SmallLayer plain, none, some;
    const Elements no_sink(HEED_F32, 0, 0), slopes(HEED_F32, 4, 12);
    std::vector<float> lowest(4, -INFINITY), sink = {0.5f, 1, 2, 3};
    none.weights.sink = heed::tensor(lowest.data(), 4);
    some.weights.sink = heed::tensor(sink.data(), 4);
    const heed::Layer a = plain.make(), b = none.make(), c = some.make();
    GuardedCall without(a, HEED_F32, 2, 20), with_none(b, HEED_F32, 2, 20), with_some(c, HEED_F32, 2, 20);
    const std::vector<float> y = without.run();
    EXPECT_EQ(with_none.run(), y);
    EXPECT_NE(with_some.run(), y);

    // slope * (j - p(i)) as a bias of the caller's.
    some.weights.sink = {};
    some.weights.alibi_slopes = slopes.tensor();
    const heed::Layer d = some.make();
    GuardedCall with_slopes(d, HEED_F32, 2, 20), with_bias(a, HEED_F32, 2, 20);
    Elements bias(HEED_F32, 0, 0);
    for (int32_t h = 0; h < 4; h++) {
        for (int32_t i = 0; i < 20; i++) {
            for (int32_t j = 0; j < 20; j++) bias.push(slopes[static_cast<size_t>(h)] * static_cast<float>(j - i));
        }
    }
    with_bias.args.bias = bias.tensor();
    with_bias.args.bias_shape[0] = 1;
    expect_near(with_slopes.run(), with_bias.run(), f32_bound);
}

TEST(Layer, SameBitsForAnyThreadsAndShapesSeenBefore) {
    const SmallLayer small;
    const heed::Layer layer = small.make();
    GuardedCall call(layer, HEED_F32, 3, 24);
    const std::vector<float> y = call.run();
    for (const int32_t num_threads : {1, 2, 0}) {
        call.args.execution.num_threads = num_threads;
        EXPECT_EQ(call.run(), y);
    }
}

TEST(Layer, ThreadsShareALayer) {
    const SmallLayer small;
    const heed::Layer layer = small.make();
    GuardedCall reference(layer, HEED_F32, 2, 20);
    const std::vector<float> expected = reference.run();
    std::vector<std::thread> threads;
    for (int32_t n = 0; n < 4; n++) {
        threads.emplace_back([&] {
            heed::Cache cache(layer, cache_config(f32_storages().front()));
            for (int32_t repeat = 0; repeat < sized(20, 2); repeat++) {
                cache.reset();
                GuardedCall call(layer, HEED_F32, 2, 20), plain(layer, HEED_F32, 2, 20);
                call.args.cache = cache.get();
                expect_near(call.run(), expected, f32_bound);
                EXPECT_EQ(plain.run(), expected);
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
}

TEST(Layer, EmptyCallsTouchNothing) {
    const SmallLayer small;
    const heed::Layer layer = small.make();
    GuardedCall call(layer, HEED_F32, 2, 5);
    call.args.batch = 0;
    EXPECT_EQ(call.status(), HEED_OK) << heed_last_error();
    call.args.batch = 2;
    call.args.q_len = 0;
    EXPECT_EQ(call.status(), HEED_OK) << heed_last_error();
    EXPECT_TRUE(call.y_untouched());
}

// Any call within the config's sizes runs in the workspace that the layer asks for.
TEST(Layer, WorkspaceSuffices) {
    const heed_dtype dtype = dtype_with_dropout();
    SKIP_WITHOUT_KERNELS(dtype, dtype, HEED_KV_PAGED, HEED_FEATURE_DROPOUT);
    SmallLayer small(dtype);
    small.config.max_threads = 2;
    small.config.dropout_p = 0.1f;
    small.config.qk_norm = HEED_QK_NORM_HEAD;
    const Elements norm(dtype, SmallLayer::head_dim, 20);
    small.weights.q_norm_weight = small.weights.k_norm_weight = norm.tensor();
    const heed::Layer layer = small.make();
    Rng rng(21);
    std::vector<uint8_t> mask(3 * 24 * 40, 1);
    const bool quantised = has_kernels(dtype, HEED_I8, HEED_KV_PAGED, HEED_FEATURE_DROPOUT | HEED_FEATURE_MASK);
    for (int32_t n = 0; n < sized(200, 20); n++) {
        const int32_t batch = rng.between(1, 3), q_len = rng.chance(0.5) ? rng.between(1, 4) : rng.between(1, 24);
        const heed_kv_storage storage = rng.chance(0.5) ? HEED_KV_PAGED : HEED_KV_CONTIGUOUS;
        heed::Cache cache(layer, cache_config(storage, quantised && rng.chance(0.5) ? HEED_I8 : dtype, batch));
        GuardedCall call(layer, dtype, batch, q_len);
        if (rng.chance(0.7)) call.args.cache = cache.get();
        if (rng.chance(0.5)) {
            call.args.mask = heed::tensor(mask.data(), mask.size());
            call.args.mask_shape[1] = 1;
        }
        call.args.training = rng.chance(0.5);
        for (const float x : call.run()) ASSERT_TRUE(std::isfinite(x));
    }
}

// Lengths of queries and keys together: a token after either is no key.
TEST(Layer, QueryAndKeyLengths) {
    const heed::Layer layer = SmallLayer().make();
    const int32_t q_lens[] = {7, 20}, kv_lens[] = {20, 9};
    GuardedCall call(layer, HEED_F32, 2, 20), other(layer, HEED_F32, 2, 20);
    for (GuardedCall *each : {&call, &other}) {
        each->args.q_lens = q_lens;
        each->args.kv_lens = kv_lens;
    }
    for (int32_t t = 7; t < 20; t++) other.take_token(0, t, call, 1, t);
    EXPECT_EQ(call.run(), other.run());
}

// With dropout, asking for probabilities changes no bit.
TEST(Layer, ProbabilitiesAreASideResult) {
    const heed_dtype dtype = dtype_with_dropout();
    SKIP_WITHOUT_KERNELS(dtype, dtype, HEED_KV_CONTIGUOUS, HEED_FEATURE_DROPOUT);
    SmallLayer small(dtype);
    small.config.dropout_p = 0.3f;
    const heed::Layer layer = small.make();
    std::vector<float> y[2], probs(2 * 4 * 20 * 20);
    for (const bool with_probs : {false, true}) {
        const heed::Cache cache(layer, cache_config(HEED_KV_CONTIGUOUS, dtype));
        GuardedCall call(layer, dtype, 2, 20);
        call.args.cache = cache.get();
        call.args.training = true;
        if (with_probs) call.args.probs = heed::tensor(probs.data(), probs.size());
        y[with_probs] = call.run();
    }
    EXPECT_EQ(y[0], y[1]);
    for (size_t row = 0; row < probs.size() / 20; row++) {
        double sum = 0;
        for (size_t j = 0; j < 20; j++) sum += static_cast<double>(probs[row * 20 + j]);
        ASSERT_NEAR(sum, 1, 1e-6);
    }
}

// A short max_kv_len does not make a self attention layer's workspace too small.
TEST(Layer, WorkspaceOfShortCaches) {
    SmallLayer small;
    small.config.max_kv_len = 1;
    const heed::Layer layer = small.make();
    GuardedCall(layer, HEED_F32, 3, 24).run();
}

TEST(Layer, CrossAttentionWithoutMemory) {
    SmallLayer small;
    small.config.cross = true;
    const heed::Layer layer = small.make();
    GuardedCall call(layer, HEED_F32, 2, 5);
    EXPECT_EQ(call.run(), std::vector<float>(2 * 5 * SmallLayer::dim_out, 0.0f));  // no key, no bias of the output
    const heed::Cache cache(layer, cache_config(f32_storages().front()));
    const heed_tensor nothing = {};
    ASSERT_EQ(call_prepare(layer.get(), cache.get(), 2, 0, &nothing, nullptr, &call.args.execution), HEED_OK);
    call.args.cache = cache.get();
    EXPECT_EQ(call.run(), std::vector<float>(2 * 5 * SmallLayer::dim_out, 0.0f));
}

}  // namespace
}  // namespace heed_test
