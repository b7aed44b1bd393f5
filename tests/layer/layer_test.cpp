// What holds for a layer whatever its weights: caches, lengths, masks, types, threads.
#include <thread>

#include "small_layer.h"

namespace heed_test {
namespace {

constexpr double f32_bound = 2e-6;  // another order of float sums: a few units of 2^-24

// The prompt's tokens at once, then one token after the other: the rows of one causal call.
void expect_steps_equal_batched(const SmallLayer &small, heed_kv_storage storage, heed_dtype cache_dtype,
                                double bound) {
    const heed_dtype dtype = small.config.dtype;
    const heed::Layer layer = small.make();
    const heed::Cache cache(layer, cache_config(storage, cache_dtype));
    GuardedCall whole(layer, dtype, 2, 20);
    const std::vector<float> expected = whole.run();
    for (int32_t first = 0, len = 9; first < 20; first += len, len = first < 16 ? 1 : 20 - first) {
        GuardedCall step(layer, dtype, 2, len);
        step.args.cache = cache.get();
        for (int32_t b = 0; b < 2; b++) {
            for (int32_t t = 0; t < len; t++) step.take_token(b, t, whole, b, first + t);
        }
        const std::vector<float> y = step.run();
        for (int32_t b = 0; b < 2; b++) {
            for (int32_t t = 0; t < len; t++) {
                expect_near(row_of(y, len, b, t), row_of(expected, 20, b, first + t), bound);
            }
        }
    }
    EXPECT_EQ(cache.view().kv_lens[1], 20);
}

TEST(Layer, StepsEqualBatched) {
    SmallLayer small;
    expect_steps_equal_batched(small, HEED_KV_CONTIGUOUS, HEED_F32, f32_bound);
    expect_steps_equal_batched(small, HEED_KV_PAGED, HEED_F32, f32_bound);
    small.add_rope();
    expect_steps_equal_batched(small, HEED_KV_CONTIGUOUS, HEED_F32, f32_bound);
    expect_steps_equal_batched(small, HEED_KV_PAGED, HEED_F32, f32_bound);
    small.config.rope_interleaved = true;
    expect_steps_equal_batched(small, HEED_KV_PAGED, HEED_F32, f32_bound);
}

// Projections are rounded to the dtype: a step's unit is 2^-9 (bf16), 2^-12 (f16); codes have 127 steps.
TEST(Layer, StepsEqualBatchedInOtherTypes) {
    for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
        expect_steps_equal_batched(SmallLayer(HEED_BF16), storage, HEED_BF16, 0x1p-6);
        expect_steps_equal_batched(SmallLayer(HEED_F16), storage, HEED_F16, 0x1p-9);
        expect_steps_equal_batched(SmallLayer(HEED_F16), storage, HEED_I8, 4.0 / 127);
        expect_steps_equal_batched(SmallLayer(), storage, HEED_I8, 4.0 / 127);
    }
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

TEST(Layer, RopeChangesWhatPositionsMean) {
    SmallLayer plain, rotated;
    rotated.add_rope();
    const heed::Layer a = plain.make(), b = rotated.make();
    GuardedCall first(a, HEED_F32, 2, 20), second(b, HEED_F32, 2, 20);
    const std::vector<float> y = first.run(), z = second.run();
    EXPECT_EQ(row_of(y, 20, 0, 0), row_of(z, 20, 0, 0));  // a token that sees itself alone
    EXPECT_NE(row_of(y, 20, 0, 5), row_of(z, 20, 0, 5));
}

// A fork continues as the original would have; what either appends is its own.
TEST(Layer, ForksAndTruncation) {
    const SmallLayer small;
    const heed::Layer layer = small.make();
    for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
        heed::Cache cache(layer, cache_config(storage)), other(layer, cache_config(storage));
        GuardedCall prompt(layer, HEED_F32, 2, 10), step(layer, HEED_F32, 2, 1, 8), more(layer, HEED_F32, 2, 1, 9);
        prompt.args.cache = cache.get();
        prompt.run();
        cache.fork(0, 1);
        for (int32_t b = 0; b < 2; b++) {
            for (int32_t t = 0; t < 10; t++) prompt.take_token(b, t, prompt, 0, t);
        }
        prompt.args.cache = other.get();
        prompt.run();  // both sequences have sequence 0's tokens
        step.args.cache = cache.get();
        const std::vector<float> forked = step.run();
        step.args.cache = other.get();
        EXPECT_EQ(forked, step.run());
        more.args.cache = cache.get();
        const std::vector<float> continued = more.run();
        cache.truncate(0, 10);
        cache.truncate(1, 10);
        EXPECT_EQ(cache.view().kv_lens[0], 10);
        step.args.cache = cache.get();
        EXPECT_EQ(step.run(), forked);
        EXPECT_EQ(more.run(), continued);
        cache.reset();
        EXPECT_EQ(cache.view().kv_lens[1], 0);
    }
}

// Sequences of their own lengths: each as alone, rows behind it zero, whatever the padding of x holds.
TEST(Layer, QueryLengths) {
    const SmallLayer small;
    const heed::Layer layer = small.make();
    const int32_t lens[] = {7, 0, 20};
    for (const bool cached : {false, true}) {
        heed::Cache cache(layer, cache_config(HEED_KV_PAGED, HEED_F32, 3));
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
            heed::Cache cache(layer, cache_config(HEED_KV_PAGED));
            for (int32_t repeat = 0; repeat < 20; repeat++) {
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
    SmallLayer small;
    small.config.max_threads = 2;
    small.config.dropout_p = 0.1f;
    small.config.qk_norm = HEED_QK_NORM_HEAD;
    const Elements norm(HEED_F32, SmallLayer::head_dim, 20);
    small.weights.q_norm_weight = small.weights.k_norm_weight = norm.tensor();
    const heed::Layer layer = small.make();
    Rng rng(21);
    std::vector<uint8_t> mask(3 * 24 * 40, 1);
    for (int32_t n = 0; n < 200; n++) {
        const int32_t batch = rng.between(1, 3), q_len = rng.chance(0.5) ? rng.between(1, 4) : rng.between(1, 24);
        const heed_kv_storage storage = rng.chance(0.5) ? HEED_KV_PAGED : HEED_KV_CONTIGUOUS;
        heed::Cache cache(layer, cache_config(storage, rng.chance(0.5) ? HEED_I8 : HEED_F32, batch));
        GuardedCall call(layer, HEED_F32, batch, q_len);
        if (rng.chance(0.7)) call.args.cache = cache.get();
        if (rng.chance(0.5)) {
            call.args.mask = heed::tensor(mask.data(), mask.size());
            call.args.mask_shape[1] = 1;
        }
        call.args.training = rng.chance(0.5);
        for (const float x : call.run()) ASSERT_TRUE(std::isfinite(x));
    }
}

}  // namespace
}  // namespace heed_test
