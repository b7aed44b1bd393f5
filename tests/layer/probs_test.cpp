// Calls that ask for probabilities: their output is the product of these with the values.
#include <functional>

#include "tests/layer/small_layer.h"
#include "tests/support/cpu_targets.h"

namespace heed_test {
namespace {

// Four heads of queries on one of keys and values: enough rows for the products.
SmallLayer grouped_layer(heed_dtype dtype = HEED_F32) {
    SmallLayer small(dtype);
    small.drop_kv_head();
    return small;
}

double bound_of(heed_dtype dtype) { return dtype == HEED_F32 ? f32_bound : dtype == HEED_F16 ? 0x1p-9 : 0x1p-6; }

constexpr int32_t batch = 2, len = 20;

struct Weighted {
    std::vector<float> y, probs;
};

// With probabilities of `dtype`.
Weighted run_with_probs(GuardedCall *call, heed_dtype dtype = HEED_F32, int32_t keys = len) {
    Elements probs(dtype, int64_t{batch} * SmallLayer::heads * call->args.q_len * keys, 0);
    call->args.probs = probs.tensor();
    Weighted result;
    result.y = call->run();
    for (size_t i = 0; i < probs.size(); i++) result.probs.push_back(probs[i]);
    call->args.probs = {};
    return result;
}

void expect_same_y(GuardedCall *call, heed_dtype dtype = HEED_F32, int32_t keys = len) {
    const std::vector<float> y = call->run();
    for (const heed_dtype of_probs : {HEED_F32, dtype}) {
        expect_near(run_with_probs(call, of_probs, keys).y, y, bound_of(dtype));
    }
}

// Layers of each type on each instruction set.
void on_each_instruction_set(const std::function<void(heed_dtype)> &test) {
    on_each_cpu_target([&] {
        for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
            SCOPED_TRACE(dtype_name(dtype));
            test(dtype);
        }
    });
}

TEST(LayerProbs, OutputIsThatWithoutThem) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const int32_t window : {-1, 5}) {
            SCOPED_TRACE(testing::Message() << dtype_name(dtype) << " window " << window);
            SmallLayer small = grouped_layer(dtype);
            small.config.window_left = window;
            const heed::Layer layer = small.make();
            GuardedCall call(layer, dtype, batch, len);
            expect_same_y(&call, dtype);
        }
    }
}

TEST(LayerProbs, OnEveryInstructionSet) {
    on_each_instruction_set([](heed_dtype dtype) {
        const heed::Layer layer = grouped_layer(dtype).make();
        GuardedCall call(layer, dtype, batch, len);
        expect_same_y(&call, dtype);
    });
}

// Four rows for each query: less than a tile of any kernel, whole tiles of some, and more.
TEST(LayerProbs, OfFewQueries) {
    on_each_instruction_set([](heed_dtype dtype) {
        const heed::Layer layer = grouped_layer(dtype).make();
        for (const int32_t queries : {1, 2, 3, 7, 8, 10}) {
            SCOPED_TRACE(queries);
            GuardedCall call(layer, dtype, batch, queries);
            expect_same_y(&call, dtype, queries);
        }
    });
}

TEST(LayerProbs, MasksBiasesAndSinks) {
    Rng rng(3);
    std::vector<uint8_t> mask(batch * len * len), padding(batch * len);
    for (uint8_t &x : mask) x = rng.chance(0.5);
    for (uint8_t &x : padding) x = rng.chance(0.7);
    std::fill(mask.begin(), mask.begin() + 3 * len, uint8_t{0});  // rows without a key
    const Elements bias(HEED_F32, SmallLayer::heads * len, 11), sink(HEED_F32, SmallLayer::heads, 12);
    for (int32_t given = 0; given < 16; given++) {
        SCOPED_TRACE(given);
        SmallLayer small = grouped_layer();
        small.config.causal = false;
        if (given & 8) small.weights.sink = sink.tensor();
        const heed::Layer layer = small.make();
        GuardedCall call(layer, HEED_F32, batch, len);
        call.args.mask_shape[1] = 1;
        if (given & 1) call.args.mask = heed::tensor(mask.data(), mask.size());
        if (given & 2) call.args.key_padding = heed::tensor(padding.data(), padding.size());
        if (given & 4) {
            call.args.bias = bias.tensor();
            call.args.bias_shape[0] = call.args.bias_shape[2] = 1;
        }
        expect_same_y(&call);
    }
}

TEST(LayerProbs, LengthsOfSequences) {
    for (const heed_dtype dtype : {HEED_F32, HEED_BF16}) {
        const heed::Layer layer = grouped_layer(dtype).make();
        const int32_t q_lens[] = {7, 20}, kv_lens[] = {20, 0}, odd_kv_lens[] = {19, 7};
        GuardedCall call(layer, dtype, batch, len);
        call.args.q_lens = q_lens;
        expect_same_y(&call, dtype);
        for (const int32_t *lens : {kv_lens, odd_kv_lens}) {
            call.args.kv_lens = lens;
            expect_same_y(&call, dtype);
        }
    }
}

// Contiguous and paged caches, codes too: a prompt and tokens after it.
TEST(LayerProbs, Caches) {
    const heed::Layer layer = grouped_layer().make();
    for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
        for (const heed_dtype dtype : {HEED_F32, HEED_I8}) {
            heed::Cache first(layer, cache_config(storage, dtype)), second(layer, cache_config(storage, dtype));
            for (int32_t step = 0; step < 2; step++) {
                GuardedCall call(layer, HEED_F32, batch, 18, static_cast<uint64_t>(step));
                call.args.cache = first.get();
                const std::vector<float> y = run_with_probs(&call, HEED_F32, 18 * (step + 1)).y;
                call.args.cache = second.get();
                expect_near(y, call.run(), f32_bound);
            }
        }
    }
}

TEST(LayerProbs, AnyNumberOfThreadsGivesTheSameBits) {
    for (const heed_dtype dtype : {HEED_F32, HEED_BF16}) {
        SmallLayer small = grouped_layer(dtype);
        small.config.max_threads = 8;
        const heed::Layer layer = small.make();
        GuardedCall call(layer, dtype, batch, len);
        call.args.execution.num_threads = 1;
        const Weighted one = run_with_probs(&call, dtype);
        for (const int32_t threads : {2, 3, 8}) {
            call.args.execution.num_threads = threads;
            const Weighted more = run_with_probs(&call, dtype);
            EXPECT_EQ(one.y, more.y);
            EXPECT_EQ(one.probs, more.probs);
        }
    }
}

// NaN and infinities of values make a row NaN where it sees them, and change no bit elsewhere: of calls that all have a
// padding, for kernels with and without masks may round weights otherwise.
void expect_nan_where_seen(heed_dtype dtype) {
    const heed::Layer layer = grouped_layer(dtype).make();
    GuardedCall call(layer, dtype, batch, len);
    std::vector<uint8_t> padding(batch * len, 1);
    call.args.key_padding = heed::tensor(padding.data(), padding.size());
    const std::vector<float> clean = run_with_probs(&call, dtype).y;
    for (int32_t i = 0; i < SmallLayer::dim_in; i++) call.x.set(static_cast<size_t>(13 * SmallLayer::dim_in + i), NAN);
    for (const bool hidden : {false, true}) {
        padding[13] = !hidden;
        const std::vector<float> y = run_with_probs(&call, dtype).y;
        for (int32_t t = 0; t < batch * len; t++) {
            const bool is_nan = t == 13 || (!hidden && t > 13 && t < len);
            const std::vector<float> row = row_of(y, len, 0, t);
            EXPECT_EQ(std::isnan(row[0]), is_nan) << hidden << t;
            if (t < 13 || t >= len) {
                EXPECT_EQ(row, row_of(clean, len, 0, t)) << hidden << t;
            }
        }
    }
}

TEST(LayerProbs, NotANumberStaysWhereItIsSeen) {
    expect_nan_where_seen(HEED_F32);
    expect_nan_where_seen(HEED_BF16);
}

// Keys are 0, so that nothing but values is infinite.
TEST(LayerProbs, InfiniteValuesReachThoseThatSeeThem) {
    SmallLayer small = grouped_layer();
    for (size_t i = 0; i < small.wk.size(); i++) small.wk.set(i, 0);
    for (size_t i = 0; i < small.bk.size(); i++) small.bk.set(i, 0);
    const heed::Layer layer = small.make();
    GuardedCall call(layer, HEED_F32, batch, len);
    for (int32_t i = 0; i < SmallLayer::dim_in; i++) {
        const float sign = small.wv[static_cast<size_t>(i)] < 0 ? -1.f : 1.f;
        call.x.set(static_cast<size_t>(5 * SmallLayer::dim_in + i), sign * 3e38f);
    }
    std::vector<uint8_t> padding(batch * len, 1);
    padding[5] = 0;
    const std::vector<float> seen = run_with_probs(&call).y;
    call.args.key_padding = heed::tensor(padding.data(), padding.size());
    const std::vector<float> hidden = run_with_probs(&call).y;
    for (int32_t t = 0; t < len; t++) {
        EXPECT_EQ(std::isfinite(row_of(seen, len, 0, t)[0]), t < 5) << t;
        if (t != 5) {
            EXPECT_TRUE(std::isfinite(row_of(hidden, len, 0, t)[0])) << t;
        }
    }
}

}  // namespace
}  // namespace heed_test
