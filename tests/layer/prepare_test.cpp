// What heed_layer_prepare and the functions of caches refuse: handles that are NULL, context that does not fit.
#include <optional>

#include "heed/fields.h"
#include "tests/layer/small_layer.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

void expect_refused(heed_status status, heed_status wanted, const std::string &sentence) {
    EXPECT_EQ(status, wanted);
    EXPECT_THAT(heed_last_error(), HasSubstr(sentence));
}

void expect_invalid(heed_status status, const std::string &sentence) {
    expect_refused(status, HEED_INVALID_ARGUMENT, sentence);
}

TEST(LayerHandles, NullNamesItself) {
    const heed::Layer layer = SmallLayer().make();
    const heed::CacheConfig config = cache_config(HEED_KV_CONTIGUOUS);
    heed_cache *cache = nullptr;
    heed_kv_view view;
    expect_invalid(heed_cache_create(layer.get(), &config, nullptr), "heed_cache_create: cache is NULL");
    expect_invalid(heed_cache_create(nullptr, &config, &cache), "heed_cache_create: layer is NULL");
    expect_invalid(heed_cache_create(layer.get(), nullptr, &cache), "heed_cache_create: config is NULL");
    expect_invalid(heed_cache_truncate(nullptr, 0, 0), "heed_cache_truncate: cache is NULL");
    expect_invalid(heed_cache_fork(nullptr, 0, 0), "heed_cache_fork: cache is NULL");
    expect_invalid(heed_cache_view(nullptr, &view), "heed_cache_view: cache is NULL");
    const heed::Cache own(layer, config);
    EXPECT_EQ(heed_cache_fork(own.get(), 1, 1), HEED_OK) << heed_last_error();
}

TEST(LayerHandles, FlagsAndNumbersOfTheConfig) {
    heed_layer *layer = nullptr;
    const auto expect_refusal = [&](const std::string &name, auto heed_layer_config::*field) {
        if (!std::is_same_v<decltype(field), bool heed_layer_config::*>) return;
        SmallLayer small;
        std::memset(&(small.config.*field), 2, 1);
        expect_invalid(heed_layer_create(&small.config, &small.weights, &layer), name + " is 2");
    };
    expect_refusal("cross", &heed_layer_config::cross);
    expect_refusal("rope_interleaved", &heed_layer_config::rope_interleaved);
#define HEED_REFUSE(name, ...) expect_refusal(#name, &heed_layer_config::name);
    HEED_LOGIT_FIELDS(HEED_REFUSE)
#undef HEED_REFUSE
    SmallLayer norm, rotary, cross;
    norm.config.qk_norm_epsilon = INFINITY;
    expect_invalid(heed_layer_create(&norm.config, &norm.weights, &layer), "qk_norm_epsilon is inf");
    rotary.config.rotary_dim = -2;
    expect_invalid(heed_layer_create(&rotary.config, &rotary.weights, &layer), "rotary_dim is -2");
    cross.config.cross = true;
    cross.config.causal = false;
    cross.add_rope();
    expect_invalid(heed_layer_create(&cross.config, &cross.weights, &layer), "rotary_dim is 8 with cross");
}

class Prepare : public testing::Test {
protected:
    Prepare() : memory_(HEED_F32, 2 * 9 * SmallLayer::dim_in, 31), tokens_(memory_.tensor()) {
        small_.config.cross = true;
        small_.config.causal = false;
        small_.config.max_threads = 3;
        layer_.emplace(small_.make());
        call_.emplace(*layer_, HEED_F32, 2, 5);
        execution_ = call_->args.execution;
    }

    heed_status prepare(const heed::Cache &cache, int32_t batch = 2, int32_t context_len = 9,
                        const int32_t *context_lens = nullptr) {
        return heed_layer_prepare(layer_->get(), cache.get(), batch, context_len, &tokens_, context_lens, &execution_);
    }

    SmallLayer small_;
    std::optional<heed::Layer> layer_;
    std::optional<GuardedCall> call_;
    Elements memory_;
    heed_tensor tokens_;
    heed_execution execution_;
};

TEST_F(Prepare, NullNamesItself) {
    const heed::Cache cache(*layer_, cache_config(HEED_KV_PAGED));
    expect_invalid(heed_layer_prepare(nullptr, cache.get(), 2, 9, &tokens_, nullptr, &execution_), "layer is NULL");
    expect_invalid(heed_layer_prepare(layer_->get(), nullptr, 2, 9, &tokens_, nullptr, &execution_), "cache is NULL");
    expect_invalid(heed_layer_prepare(layer_->get(), cache.get(), 2, 9, &tokens_, nullptr, nullptr),
                   "execution is NULL");
    tokens_.data = nullptr;
    expect_invalid(prepare(cache), "context is NULL");
}

TEST_F(Prepare, ErrorsLeaveTheCache) {
    const heed::Cache cache(*layer_, cache_config(HEED_KV_PAGED));
    ASSERT_EQ(prepare(cache), HEED_OK) << heed_last_error();
    const heed_execution good = execution_;
    execution_.num_threads = 4;
    expect_invalid(prepare(cache), "execution.num_threads is 4; it must be 0 or 1..3");
    execution_ = good;
    execution_.workspace = nullptr;
    expect_invalid(prepare(cache), "execution.workspace is NULL");
    execution_ = good;
    execution_.workspace = static_cast<char *>(good.workspace) + 64;
    expect_invalid(prepare(cache), "execution.workspace is at");
    execution_ = good;
    execution_.workspace_bytes--;
    expect_refused(prepare(cache), HEED_WORKSPACE_TOO_SMALL, "execution.workspace_bytes is");
    execution_ = good;
    expect_invalid(prepare(cache, 2, 41), "context_len is 41; it must be 0..40");
    expect_invalid(prepare(cache, 2, 9, static_cast<const int32_t *>(good.workspace)),
                   "workspace overlaps context_lens");
    EXPECT_EQ(cache.view().kv_lens[1], 9);
    EXPECT_EQ(prepare(cache, 2, 0), HEED_OK) << heed_last_error();
    EXPECT_EQ(cache.view().kv_lens[1], 0);
}

TEST_F(Prepare, CachesThatDoNotFit) {
    heed::CacheConfig few = cache_config(HEED_KV_PAGED), many = few;
    few.num_pages = 3;
    expect_refused(prepare(heed::Cache(*layer_, few)), HEED_OUT_OF_MEMORY, "the cache has 3 pages; context needs 4");
    many.batch = 4;
    expect_invalid(prepare(heed::Cache(*layer_, many), 4, 4), "batch is 4; it must be 0..3");
    SmallLayer other;
    other.drop_kv_head();
    const heed::Layer others = other.make();
    expect_invalid(prepare(heed::Cache(others, cache_config(HEED_KV_PAGED))), "cache is of f32 layers with 1 kv heads");
}

}  // namespace
}  // namespace heed_test
