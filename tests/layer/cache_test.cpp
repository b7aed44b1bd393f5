// Layers with caches: steps, forks, ended sequences, positions.
#include "tests/layer/small_layer.h"

namespace heed_test {
namespace {

// A type and a kind of cache.
struct Kind {
    heed_dtype dtype;
    heed_kv_storage storage;
};

class LayerCache : public testing::TestWithParam<Kind> {
protected:
    void SetUp() override { SKIP_WITHOUT_KERNELS(dtype(), dtype(), storage()); }
    heed_dtype dtype() const { return GetParam().dtype; }
    heed_kv_storage storage() const { return GetParam().storage; }
    heed::CacheConfig config(int32_t batch = 2) const { return cache_config(storage(), dtype(), batch); }
    // Projections are rounded to the dtype: a step's unit is 2^-9 (bf16), 2^-12 (f16).
    double bound() const { return dtype() == HEED_F32 ? f32_bound : dtype() == HEED_F16 ? 0x1p-9 : 0x1p-6; }
};

// The prompt's tokens at once, then one token after the other: the rows of one causal call.
void expect_steps_equal_batched(const SmallLayer &small, heed_kv_storage storage, heed_dtype cache_dtype, double bound,
                                bool masked = false) {
    const heed_dtype dtype = small.config.dtype;
    const heed::Layer layer = small.make();
    const heed::Cache cache(layer, cache_config(storage, cache_dtype));
    GuardedCall whole(layer, dtype, 2, 20);
    const std::vector<float> expected = whole.run();
    for (int32_t first = 0, len = 9; first < 20; first += len, len = first < 16 ? 1 : 20 - first) {
        GuardedCall step(layer, dtype, 2, len);
        step.args.cache = cache.get();
        const std::vector<uint8_t> all(static_cast<size_t>(2 * len * (first + len)), 1);
        if (masked) step.args.mask = heed::tensor(all.data(), all.size());
        step.args.mask_shape[1] = 1;
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

TEST_P(LayerCache, StepsEqualBatched) {
    SmallLayer small(dtype());
    expect_steps_equal_batched(small, storage(), dtype(), bound());
    small.add_rope();
    expect_steps_equal_batched(small, storage(), dtype(), bound());
    small.config.rope_interleaved = true;
    expect_steps_equal_batched(small, storage(), dtype(), bound());
}

TEST_P(LayerCache, StepsEqualBatchedInCodes) {
    SKIP_WITHOUT_KERNELS(dtype(), HEED_I8, storage());
    expect_steps_equal_batched(SmallLayer(dtype()), storage(), HEED_I8, 4.0 / 127);  // codes have 127 steps
}

// A mask is as wide as the sequences are, not as the cache.
TEST_P(LayerCache, MaskedStepsEqualBatchedInCodes) {
    SKIP_WITHOUT_KERNELS(dtype(), HEED_I8, storage(), HEED_FEATURE_MASK);
    expect_steps_equal_batched(SmallLayer(dtype()), storage(), HEED_I8, 4.0 / 127, true);
}

// What another cache of the layer holds: the next call's bits are those of a cache that the layer has filled.
TEST_P(LayerCache, AppendedFromAnother) {
    SmallLayer small(dtype());
    small.add_rope();
    const heed::Layer layer = small.make();
    heed::Cache loaded(layer, config());
    const heed::Cache filled(layer, config()), source(layer, cache_config(HEED_KV_CONTIGUOUS, dtype(), 2));
    const int32_t lens[] = {9, 4};
    for (const heed::Cache *cache : {&filled, &source}) {
        GuardedCall prompt(layer, dtype(), 2, 9);
        prompt.args.cache = cache->get();
        prompt.args.q_lens = lens;
        prompt.run();
    }
    heed_execution execution = {};
    execution.device = test_device();
    if (test_device() == HEED_CUDA) execution.stream = CudaDevice::get().stream();
    loaded.append(source.view(), 9, lens, execution);
    EXPECT_EQ(loaded.view().kv_lens[0], 9);
    EXPECT_EQ(loaded.view().kv_lens[1], 4);
    GuardedCall a(layer, dtype(), 2, 2), b(layer, dtype(), 2, 2);
    a.args.cache = filled.get();
    b.args.cache = loaded.get();
    EXPECT_EQ(a.run(), b.run());
}

TEST(LayerPositions, RopeChangesWhatPositionsMean) {
    SmallLayer plain, rotated;
    rotated.add_rope();
    const heed::Layer a = plain.make(), b = rotated.make();
    GuardedCall first(a, HEED_F32, 2, 20), second(b, HEED_F32, 2, 20);
    const std::vector<float> y = first.run(), z = second.run();
    EXPECT_EQ(row_of(y, 20, 0, 0), row_of(z, 20, 0, 0));  // a token that sees itself alone
    EXPECT_NE(row_of(y, 20, 0, 5), row_of(z, 20, 0, 5));
}

// A fork continues as the original would have; what either appends is its own.
TEST_P(LayerCache, ForksAndTruncation) {
    const SmallLayer small(dtype());
    const heed::Layer layer = small.make();
    heed::Cache cache(layer, config()), other(layer, config());
    GuardedCall prompt(layer, dtype(), 2, 10), step(layer, dtype(), 2, 1, 8), more(layer, dtype(), 2, 1, 9);
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

// A sequence that has ended stays in the batch while the others go on.
TEST_P(LayerCache, EndedSequences) {
    SmallLayer small(dtype());
    small.add_rope();
    const heed::Layer layer = small.make();
    const heed::Cache cache(layer, config());
    GuardedCall prompt(layer, dtype(), 2, 24), rest(layer, dtype(), 2, 16), step(layer, dtype(), 2, 1);
    prompt.args.cache = rest.args.cache = step.args.cache = cache.get();
    const int32_t first[] = {24, 3}, then[] = {16, 1}, only[] = {0, 1};
    prompt.args.q_lens = first;
    rest.args.q_lens = then;
    step.args.q_lens = only;
    prompt.run();
    rest.run();
    step.run();
    EXPECT_EQ(cache.view().kv_lens[0], 40);
    EXPECT_EQ(cache.view().kv_lens[1], 5);
}

// The last user of a shared page keeps it: as many pages as there are contents.
TEST_P(LayerCache, ForksNeedNoSparePage) {
    if (storage() != HEED_KV_PAGED) GTEST_SKIP() << "of pages";
    const heed::Layer layer = SmallLayer(dtype()).make();
    for (const bool one_only : {false, true}) {
        heed::CacheConfig pages = config(3);
        pages.num_pages = one_only ? 2 : 3;
        heed::Cache cache(layer, pages);
        GuardedCall prompt(layer, dtype(), 3, 5), step(layer, dtype(), 3, 1);
        const int32_t first[] = {5, 0, 0}, one[] = {1, 0, 0};
        prompt.args.q_lens = first;
        prompt.args.cache = step.args.cache = cache.get();
        prompt.run();
        cache.fork(0, 1);
        cache.fork(0, 2);
        if (one_only) step.args.q_lens = one;
        step.run();
        EXPECT_EQ(cache.view().kv_lens[0], 6);
        EXPECT_EQ(cache.view().kv_lens[2], one_only ? 5 : 6);
        for (int32_t b = 0; b < 3; b++) cache.truncate(b, 0);
        if (one_only) continue;
        prompt.args.q_lens = nullptr;
        prompt.run();  // all pages are free again
    }
}

TEST(LayerPositions, TopLeftSeesTheFirstTokensOnly) {
    SmallLayer top_left, plain;
    top_left.config.position = HEED_TOP_LEFT;
    const heed::Layer a = top_left.make(), b = plain.make();
    GuardedCall first(a, HEED_F32, 2, 20), second(b, HEED_F32, 2, 20);
    EXPECT_EQ(first.run(), second.run());  // without past tokens both are one
    const heed::Cache cache(a, cache_config(HEED_KV_CONTIGUOUS));
    first.args.cache = cache.get();
    const std::vector<float> y = first.run();
    GuardedCall again(a, HEED_F32, 2, 20);
    again.args.cache = cache.get();
    EXPECT_EQ(row_of(again.run(), 20, 0, 0), row_of(y, 20, 0, 0));  // its one visible key is the cache's first
}

const Kind kinds[] = {
    {HEED_F32, HEED_KV_CONTIGUOUS}, {HEED_F32, HEED_KV_PAGED},  {HEED_F16, HEED_KV_CONTIGUOUS},
    {HEED_F16, HEED_KV_PAGED},      {HEED_BF16, HEED_KV_PAGED}, {HEED_BF16, HEED_KV_CONTIGUOUS},
};

std::string kind_name(const testing::TestParamInfo<Kind> &info) {
    return std::string(dtype_name(info.param.dtype)) + (info.param.storage == HEED_KV_PAGED ? "_paged" : "_contiguous");
}

INSTANTIATE_TEST_SUITE_P(Kinds, LayerCache, testing::ValuesIn(kinds), kind_name);

}  // namespace
}  // namespace heed_test
