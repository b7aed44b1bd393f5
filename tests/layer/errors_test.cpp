// What layers refuse, with a sentence that names the field; a refused call changes nothing.
#include <functional>

#include "tests/layer/small_layer.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

#define EXPECT_REFUSED(call, wanted, sentence)                                                                         \
    EXPECT_EQ(call, wanted);                                                                                           \
    EXPECT_THAT(heed_last_error(), HasSubstr(sentence))

heed_status create(const heed_layer_config &config, const heed_layer_weights &weights) {
    heed_layer *layer = nullptr;
    const heed_status status = heed_layer_create(&config, &weights, &layer);
    EXPECT_EQ(layer != nullptr, status == HEED_OK);
    heed_layer_destroy(layer);
    return status;
}

TEST(LayerErrors, Config) {
    struct Case {
        std::function<void(heed_layer_config &)> change;
        const char *sentence;
        heed_status status = HEED_INVALID_ARGUMENT;
    };
    const Case cases[] = {
        {[](auto &c) { c.struct_size = 0; }, "call heed_layer_config_init first"},
        {[](auto &c) { c.struct_size = 7; }, "heed_layer_config.struct_size is 7"},
        {[](auto &c) { c.dtype = HEED_I8; }, "dtype is"},
        {[](auto &c) { c.device = static_cast<heed_device>(9); }, "device is 9"},
        {[](auto &c) { c.dim_in = 0; }, "dim_in is 0"},
        {[](auto &c) { c.dim_context = 64; },
         "dim_context is 64 in self attention; it must be 0 or dim_in, which is 48"},
        {[](auto &c) { c.num_heads = 0; }, "num_heads is 0"},
        {[](auto &c) { c.num_kv_heads = 3; }, "num_heads is 4; it must be a multiple of num_kv_heads, which is 3"},
        {[](auto &c) { c.head_dim = 0, c.num_heads = 5, c.num_kv_heads = 5; },
         "dim_in is 48; with head_dim 0 it must be a multiple of num_heads, which is 5"},
        {[](auto &c) { c.head_dim = 641; }, "head_dim is 641; it must be 1..640"},
        {[](auto &c) { c.head_dim_v = -1; }, "head_dim_v is -1; it must be 1..640"},
        {[](auto &c) { c.cross = true, c.weight_layout = HEED_WEIGHTS_FUSED; }, "HEED_WEIGHTS_FUSED with cross"},
        {[](auto &c) { c.weight_layout = static_cast<heed_weight_layout>(3); }, "weight_layout is 3"},
        {[](auto &c) { c.position = HEED_EXPLICIT; }, "position is 2; it must be 0..1"},
        {[](auto &c) { c.scale = INFINITY; }, "scale is inf"},
        {[](auto &c) { c.softcap = -1; }, "softcap is -1"},
        {[](auto &c) { c.window_left = -2; }, "window_left is -2"},
        {[](auto &c) { c.dropout_p = 1.5f; }, "dropout_p is 1.5"},
        {[](auto &c) { c.clip_qkv = -1; }, "clip_qkv is -1"},
        {[](auto &c) { c.clip_qkv = NAN; }, "clip_qkv is"},
        {[](auto &c) { c.qk_norm = static_cast<heed_qk_norm>(3); }, "qk_norm is 3"},
        {[](auto &c) { c.qk_norm_epsilon = -1; }, "qk_norm_epsilon is -1"},
        {[](auto &c) { c.rotary_dim = 3; }, "rotary_dim is 3; it must be even and 0..16"},
        {[](auto &c) { c.rotary_dim = 18; }, "rotary_dim is 18"},
        {[](auto &c) { c.rotary_dim = 8; }, "max_position is 0"},
        {[](auto &c) { c.max_batch = 0; }, "max_batch is 0"},
        {[](auto &c) { c.max_q_len = -1; }, "max_q_len is -1"},
        {[](auto &c) { c.max_kv_len = -1; }, "max_kv_len is -1"},
        {[](auto &c) { c.num_heads = 1 << 26; }, "67108864 heads of 16 and 12 elements are beyond 2^29 columns",
         HEED_UNSUPPORTED},
        {[](auto &c) { c.num_heads = 1 << 28, c.head_dim = 1; }, "heads of 1 and 12 elements are beyond 2^29 columns",
         HEED_UNSUPPORTED},
        {[](auto &c) { c.max_threads = 1025; }, "max_threads is 1025"},
    };
    for (const Case &c : cases) {
        SmallLayer small;
        c.change(small.config);
        EXPECT_REFUSED(create(small.config, small.weights), c.status, c.sentence);
    }
    const SmallLayer small;
    heed_layer *layer = nullptr;
    EXPECT_REFUSED(heed_layer_create(nullptr, &small.weights, &layer), HEED_INVALID_ARGUMENT, "config is NULL");
    EXPECT_REFUSED(heed_layer_create(&small.config, nullptr, &layer), HEED_INVALID_ARGUMENT, "weights is NULL");
    EXPECT_REFUSED(heed_layer_create(&small.config, &small.weights, nullptr), HEED_INVALID_ARGUMENT, "layer is NULL");
    EXPECT_REFUSED(heed_layer_config_init(nullptr), HEED_INVALID_ARGUMENT, "config is NULL");
    heed_layer_destroy(nullptr);
    EXPECT_EQ(heed_layer_workspace_bytes(nullptr), 0u);
}

TEST(LayerErrors, Weights) {
    const std::vector<float> some(7);
    const heed_tensor seven = heed::tensor(some.data(), 7);
    struct Case {
        std::function<void(SmallLayer &)> change;
        const char *sentence;
    };
    const Case cases[] = {
        {[](auto &s) { s.weights.struct_size = 0; }, "heed_layer_weights.struct_size is 0"},
        {[&](auto &s) { s.weights.wq = seven; }, "wq has 7 elements; the layer's shape [64, 48] has 3072"},
        {[&](auto &s) { s.weights.wk = seven; }, "wk has 7 elements; the layer's shape [32, 48] has 1536"},
        {[&](auto &s) { s.weights.wv = seven; }, "wv has 7 elements; the layer's shape [24, 48] has 1152"},
        {[&](auto &s) { s.weights.wo = seven; }, "wo has 7 elements; the layer's shape [40, 48] has 1920"},
        {[&](auto &s) { s.weights.bq = seven; }, "bq has 7 elements; the layer's shape [64] has 64"},
        {[&](auto &s) { s.weights.bo = seven; }, "bo has 7 elements; the layer's shape [40] has 40"},
        {[](auto &s) { s.weights.wv = {}; }, "wv is NULL"},
        {[](auto &s) { s.weights.wq.dtype = HEED_F16; }, "wq.dtype is f16 (1); it must be f32 (0)"},
        {[&](auto &s) { s.weights.wqkv = seven; }, "wqkv is not NULL; a layer with separate projections has none"},
        {[](auto &s) { s.config.weight_layout = HEED_WEIGHTS_FUSED; },
         "wq is not NULL; a layer with HEED_WEIGHTS_FUSED"},
        {[](auto &s) {
             s.config.weight_layout = HEED_WEIGHTS_EINSUM;
             s.weights.wk.size--;
         },
         "wk has 1535 elements; the layer's shape [2, 48, 16] has 1536"},
        {[](auto &s) { s.config.qk_norm = HEED_QK_NORM_HEAD; }, "q_norm_weight is NULL"},
        {[&](auto &s) { s.weights.k_norm_bias = seven; }, "k_norm_bias is not NULL; a layer with HEED_QK_NORM_NONE"},
        {[](auto &s) { s.config.rotary_dim = 8, s.config.max_position = 9; }, "rope_cos is NULL"},
        {[&](auto &s) { s.weights.rope_sin = seven; }, "rope_sin is not NULL; a layer with rotary_dim 0 has none"},
        {[&](auto &s) { s.weights.alibi_slopes = seven; },
         "alibi_slopes has 7 elements; the layer's shape [1, 4] has 4"},
        {[&](auto &s) { s.weights.sink = seven; }, "sink has 7 elements; the layer's shape [1, 4] has 4"},
    };
    for (const Case &c : cases) {
        SmallLayer small;
        c.change(small);
        EXPECT_REFUSED(create(small.config, small.weights), HEED_INVALID_ARGUMENT, c.sentence);
    }
}

struct CallCase {
    std::function<void(heed_layer_args &)> change;
    const char *sentence;
    heed_status status = HEED_INVALID_ARGUMENT;
};

// Each case on a cache with 10 tokens, and on no cache: refused, with y and the cache as they were.
void expect_refused(const heed::Layer &layer, const CallCase &c, heed_kv_storage storage, bool cached) {
    SCOPED_TRACE(c.sentence);
    heed::Cache cache(layer, cache_config(storage));
    if (cached) {
        GuardedCall prompt(layer, HEED_F32, 2, 10);
        prompt.args.cache = cache.get();
        prompt.run();
    }
    GuardedCall call(layer, HEED_F32, 2, 5);
    if (cached) call.args.cache = cache.get();
    c.change(call.args);
    EXPECT_REFUSED(call.status(), c.status, c.sentence);
    EXPECT_TRUE(call.y_untouched());
    EXPECT_EQ(cache.view().kv_lens[0], cached ? 10 : 0);
    EXPECT_EQ(cache.view().kv_lens[1], cached ? 10 : 0);
    // All that was free is free: 40 tokens of each fit again only where no page was lost.
    if (!cached) return;
    GuardedCall rest(layer, HEED_F32, 2, 24);
    rest.args.cache = cache.get();
    rest.run();
}

TEST(LayerErrors, Calls) {
    static const std::vector<uint8_t> bytes(24 * 40 * 3 * 4, 1);
    static std::vector<float> floats(24 * 40 * 3 * 4);
    static const int32_t long_lens[] = {5, 6}, negative_lens[] = {-1, 2};
    const CallCase cases[] = {
        {[](auto &a) { a.struct_size = 1; }, "heed_layer_args.struct_size is 1"},
        {[](auto &a) { a.batch = 4; }, "batch is 4; it must be 0..3"},
        {[](auto &a) { a.q_len = 25; }, "q_len is 25; it must be 0..24"},
        {[](auto &a) { a.q_len = -1; }, "q_len is -1"},
        {[](auto &a) { a.q_lens = long_lens; }, "q_lens[1] is 6; it must be 0..5"},
        {[](auto &a) { a.q_lens = negative_lens; }, "q_lens[0] is -1"},
        {[](auto &a) { a.y.size--; }, "y.size is 399"},
        {[](auto &a) { a.y.data = nullptr; }, "y is NULL"},
        {[](auto &a) { a.y.dtype = HEED_BF16; }, "y.dtype is bf16 (2)"},
        {[](auto &a) { a.context = heed::tensor(floats.data(), 4); }, "context is not NULL; a self attention layer"},
        {[](auto &a) { a.execution.workspace = nullptr; }, "execution.workspace is NULL"},
        {[](auto &a) { a.execution.workspace_bytes--; }, "execution.workspace_bytes is", HEED_WORKSPACE_TOO_SMALL},
        {[](auto &a) { a.execution.num_threads = -1; }, "execution.num_threads is -1"},
        {[](auto &a) { a.execution.num_threads = 4; }, "execution.num_threads is 4; it must be 0 or 1..3, the layer's"},
        {[](auto &a) { a.execution.device = static_cast<heed_device>(1 - a.execution.device); },
         "it must be the layer's, which is HEED_"},
        {[](auto &a) { a.mask = heed::tensor(bytes.data(), 3); }, "mask.size is 3"},
        {[](auto &a) { a.mask = heed::tensor(bytes.data(), bytes.size()), a.mask_shape[1] = 3; },
         "mask_shape[1] is 3; it must be 1, 4 or 0"},
        {[](auto &a) { a.bias = heed::tensor(floats.data(), 3); }, "bias.size is 3"},
        {[](auto &a) { a.bias = heed::tensor(bytes.data(), bytes.size()); },
         "bias.dtype is u8 (4); it must be f32 (0) or the layer's, which is f32 (0)"},
        {[](auto &a) { a.key_padding = heed::tensor(bytes.data(), 3); }, "key_padding.size is 3"},
        {[](auto &a) { a.key_padding = heed::tensor(floats.data(), floats.size()); }, "key_padding.dtype is f32 (0)"},
        {[](auto &a) { a.probs = heed::tensor(floats.data(), 3); }, "probs.size is 3"},
        {[](auto &a) { a.mask = a.y, a.mask.dtype = HEED_U8, a.mask_shape[0] = a.mask_shape[1] = 1; },
         "y overlaps mask"},
        {[](auto &a) { a.bias = a.y, a.bias_shape[0] = a.bias_shape[1] = 1; }, "y overlaps bias"},
        {[](auto &a) { std::memset(&a.training, 2, 1); }, "training is 2; it must be 0..1"},
    };
    SmallLayer small;
    small.config.max_threads = 3;
    const heed::Layer layer = small.make();
    for (const CallCase &c : cases) {
        expect_refused(layer, c, HEED_KV_CONTIGUOUS, false);
        for (const heed_kv_storage storage : f32_storages()) expect_refused(layer, c, storage, true);
    }
    static const int32_t lens[] = {3, 4};
    expect_refused(layer, {[](auto &a) { a.kv_lens = lens; }, "kv_lens is not NULL; a cache has lengths of its own"},
                   f32_storages().front(), true);
    expect_refused(layer, {[](auto &a) { a.kv_lens = long_lens; }, "kv_lens[1] is 6; it must be 0..5"}, HEED_KV_PAGED,
                   false);
    GuardedCall call(layer, HEED_F32, 2, 5);
    EXPECT_REFUSED(heed_layer_forward(nullptr, &call.args), HEED_INVALID_ARGUMENT, "layer is NULL");
    EXPECT_REFUSED(heed_layer_forward(layer.get(), nullptr), HEED_INVALID_ARGUMENT, "args is NULL");
    // y may not be where x is, and the workspace not where lengths are read from.
    call.args.y = call.x.tensor();
    EXPECT_REFUSED(call.status(), HEED_INVALID_ARGUMENT, "y overlaps x");
    if (test_device() == HEED_CUDA) return;  // whose workspace is no host memory
    call.args.q_lens = static_cast<const int32_t *>(call.args.execution.workspace);
    EXPECT_REFUSED(call.status(), HEED_INVALID_ARGUMENT, "workspace overlaps q_lens");
}

TEST(LayerErrors, FullCaches) {
    const heed::Layer layer = SmallLayer().make();
    for (const heed_kv_storage storage : f32_storages()) {
        heed::CacheConfig config = cache_config(storage);
        config.capacity = 26;
        const heed::Cache cache(layer, config);
        GuardedCall call(layer, HEED_F32, 2, 20), more(layer, HEED_F32, 2, 7);
        call.args.cache = more.args.cache = cache.get();
        call.run();
        EXPECT_REFUSED(more.status(), HEED_INVALID_ARGUMENT,
                       "sequence 0 would have 27 tokens; the cache's capacity is 26");
        EXPECT_TRUE(more.y_untouched());
        EXPECT_EQ(cache.view().kv_lens[0], 20);
    }
}

TEST(LayerErrors, FullPools) {
    SKIP_WITHOUT_KERNELS(HEED_F16, HEED_F16, HEED_KV_PAGED);
    const heed::Layer layer = SmallLayer(HEED_F16).make();
    heed::CacheConfig few = cache_config(HEED_KV_PAGED, HEED_F16);
    few.num_pages = 5;
    const heed::Cache cache(layer, few);
    GuardedCall call(layer, HEED_F16, 2, 14), more(layer, HEED_F16, 2, 1);
    call.args.cache = more.args.cache = cache.get();
    call.run();
    EXPECT_REFUSED(more.status(), HEED_OUT_OF_MEMORY, "the cache has 1 of 5 pages free; the new tokens need 2");
    EXPECT_EQ(cache.view().kv_lens[0], 14);
}

TEST(LayerErrors, Caches) {
    const heed::Layer layer = SmallLayer().make();
    struct Case {
        std::function<void(heed_cache_config &)> change;
        const char *sentence;
    };
    const Case cases[] = {
        {[](auto &c) { c.struct_size = 0; }, "heed_cache_config.struct_size is 0"},
        {[](auto &c) { c.storage = HEED_KV_VARLEN; }, "storage is 1"},
        {[](auto &c) { c.dtype = HEED_BF16; }, "dtype is bf16 (2); it must be the layer's, which is f32, or HEED_I8"},
        {[](auto &c) { c.batch = 0; }, "batch is 0"},
        {[](auto &c) { c.capacity = 41; }, "capacity is 41; it must be 1..40"},
        {[](auto &c) { c.num_pages = 0; }, "num_pages is 0"},
        {[](auto &c) { c.page_size = 0; }, "page_size is 0"},
    };
    heed_cache *cache = nullptr;
    for (const Case &c : cases) {
        heed::CacheConfig config = cache_config(HEED_KV_PAGED);
        c.change(config);
        EXPECT_REFUSED(heed_cache_create(layer.get(), &config, &cache), HEED_INVALID_ARGUMENT, c.sentence);
        EXPECT_EQ(cache, nullptr);
    }
    GuardedCall of_three(layer, HEED_F32, 3, 5);
    heed::Cache own(layer, cache_config(HEED_KV_PAGED));
    of_three.args.cache = own.get();
    EXPECT_REFUSED(of_three.status(), HEED_INVALID_ARGUMENT, "cache has 2 sequences; batch is 3");
    EXPECT_REFUSED(heed_cache_truncate(own.get(), 2, 0), HEED_INVALID_ARGUMENT, "sequence is 2; it must be 0..1");
    EXPECT_REFUSED(heed_cache_truncate(own.get(), 0, 1), HEED_INVALID_ARGUMENT, "kv_len is 1; it must be 0..0");
    EXPECT_REFUSED(heed_cache_fork(own.get(), -1, 0), HEED_INVALID_ARGUMENT, "from is -1");
    EXPECT_REFUSED(heed_cache_fork(own.get(), 0, 2), HEED_INVALID_ARGUMENT, "to is 2");
    EXPECT_REFUSED(heed_cache_reset(nullptr), HEED_INVALID_ARGUMENT, "cache is NULL");
    EXPECT_REFUSED(heed_cache_view(own.get(), nullptr), HEED_INVALID_ARGUMENT, "view is NULL");
}

TEST(LayerErrors, AppendToCaches) {
    const heed::Layer layer = SmallLayer().make();
    const heed::Cache source(layer, cache_config(HEED_KV_CONTIGUOUS, HEED_F32, 2));
    for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
        const heed::Cache cache(layer, cache_config(storage, HEED_F32, 2));
        heed_kv_view view = source.view();
        const auto append = [&](int32_t new_len, const int32_t *new_lens) {
            return heed_cache_append(cache.get(), new_len, new_lens, &view.k, &view.k_layout, &view.v, &view.v_layout,
                                     nullptr);
        };
        const int32_t none[] = {3, -1}, many[] = {4, 0};
        EXPECT_REFUSED(append(3, none), HEED_INVALID_ARGUMENT, "new_lens[1] is -1; it must be 0..3");
        EXPECT_REFUSED(append(3, many), HEED_INVALID_ARGUMENT, "new_lens[0] is 4; it must be 0..3");
        EXPECT_REFUSED(append(-1, nullptr), HEED_INVALID_ARGUMENT, "new_len is -1");
        EXPECT_REFUSED(append(1 << 20, nullptr), HEED_INVALID_ARGUMENT,
                       "would have 1048576 tokens; the cache's capacity");
        view.k.dtype = HEED_F16;
        EXPECT_REFUSED(append(1, nullptr), HEED_INVALID_ARGUMENT, "k_new.dtype is");
        view.k = {nullptr, 0, HEED_F32};
        EXPECT_REFUSED(append(1, nullptr), HEED_INVALID_ARGUMENT, "k_new");
        EXPECT_REFUSED(heed_cache_append(cache.get(), 1, nullptr, nullptr, nullptr, &view.v, nullptr, nullptr),
                       HEED_INVALID_ARGUMENT, "heed_cache_append: k_new is NULL");
        EXPECT_REFUSED(heed_cache_append(cache.get(), 1, nullptr, &view.k, nullptr, nullptr, nullptr, nullptr),
                       HEED_INVALID_ARGUMENT, "heed_cache_append: v_new is NULL");
        EXPECT_EQ(cache.view().kv_lens[0], 0);
        EXPECT_EQ(append(0, nullptr), HEED_OK) << heed_last_error();
    }
    const heed_kv_view view = source.view();
    EXPECT_REFUSED(heed_cache_append(nullptr, 1, nullptr, &view.k, nullptr, &view.v, nullptr, nullptr),
                   HEED_INVALID_ARGUMENT, "heed_cache_append: cache is NULL");
}

TEST(LayerErrors, CachesOfOtherLayers) {
    const heed::Layer layer = SmallLayer().make();
    GuardedCall call(layer, HEED_F32, 2, 5);
    SmallLayer one_head, short_keys, short_values, halves(HEED_BF16), longer;
    one_head.drop_kv_head();
    short_keys.shorten_heads(8, 12);
    short_values.shorten_heads(16, 8);
    longer.config.max_kv_len = 48;
    const std::pair<const SmallLayer *, const char *> cases[] = {
        {&one_head, "of f32 layers with 1 kv heads of 16 and 12 elements and holds 40 tokens"},
        {&short_keys, "of f32 layers with 2 kv heads of 8 and 12 elements and holds 40 tokens"},
        {&short_values, "of f32 layers with 2 kv heads of 16 and 8 elements and holds 40 tokens"},
        {&halves, "of bf16 layers with 2 kv heads of 16 and 12 elements and holds 40 tokens"},
        {&longer, "of f32 layers with 2 kv heads of 16 and 12 elements and holds 48 tokens"},
    };
    for (const auto &[small, sentence] : cases) {
        const heed::Layer other = small->make();
        heed::CacheConfig config = cache_config(HEED_KV_PAGED, small->config.dtype);
        config.capacity = small->config.max_kv_len;
        heed::Cache cache(other, config);
        call.args.cache = cache.get();
        EXPECT_REFUSED(call.status(), HEED_INVALID_ARGUMENT,
                       std::string("cache is ") + sentence +
                           "; this f32 layer has 2 kv heads of 16 and 12 elements and takes up to 40 tokens");
    }
}

TEST(LayerErrors, CrossAttention) {
    SmallLayer small;
    small.config.cross = true;
    small.config.causal = false;
    const heed::Layer cross = small.make(), self = SmallLayer().make();
    heed::Cache cache(cross, cache_config(HEED_KV_PAGED));
    GuardedCall call(cross, HEED_F32, 2, 5);
    const Elements context(HEED_F32, 2 * 9 * SmallLayer::dim_in, 31);
    call.args.context_len = 9;
    EXPECT_REFUSED(call.status(), HEED_INVALID_ARGUMENT,
                   "cache and context are NULL; cross attention takes one of them");
    call.args.cache = cache.get();
    call.args.context = context.tensor();
    EXPECT_REFUSED(call.status(), HEED_INVALID_ARGUMENT, "cache and context are both given");
    call.args.cache = nullptr;
    call.args.context_len = 41;
    EXPECT_REFUSED(call.status(), HEED_INVALID_ARGUMENT, "context_len is 41; it must be 0..40");
    call.args.context_len = 10;
    EXPECT_REFUSED(call.status(), HEED_INVALID_ARGUMENT, "context.size is 864");

    const heed_tensor tokens = context.tensor();
    const heed_execution run = call.args.execution;
    const int32_t lens[] = {9, 10};
    const auto prepare = [&](const heed::Layer &layer, int32_t batch, int32_t len, const int32_t *context_lens) {
        return call_prepare(layer.get(), cache.get(), batch, len, &tokens, context_lens, &run);
    };
    EXPECT_EQ(prepare(cross, 2, 9, nullptr), HEED_OK) << heed_last_error();
    EXPECT_REFUSED(prepare(self, 2, 9, nullptr), HEED_INVALID_ARGUMENT, "the layer is self attention");
    EXPECT_REFUSED(prepare(cross, 1, 9, nullptr), HEED_INVALID_ARGUMENT, "batch is 1; cache has 2 sequences");
    EXPECT_REFUSED(prepare(cross, 2, 10, nullptr), HEED_INVALID_ARGUMENT, "context.size is 864");
    EXPECT_REFUSED(prepare(cross, 2, 9, lens), HEED_INVALID_ARGUMENT, "context_lens[1] is 10; it must be 0..9");
    EXPECT_EQ(cache.view().kv_lens[1], 9);
    EXPECT_REFUSED(heed_layer_prepare(cross.get(), cache.get(), 2, 9, nullptr, nullptr, &run), HEED_INVALID_ARGUMENT,
                   "context is NULL");
}

}  // namespace
}  // namespace heed_test
