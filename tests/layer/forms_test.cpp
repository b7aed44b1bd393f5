// The attention layers of five published systems, each by Heed's C++ API against the formulas in numpy float64
// (reference.py). Usage: heed_layer_forms_test FOLDER.
#include <gtest/gtest.h>

#include "tests/layer/form_file.h"

namespace heed_test {
namespace {

class Forms : public testing::Test {
protected:
    void SetUp() override { enter_test_device(); }
};

heed::LayerConfig on_device() {
    heed::LayerConfig config;
    config.device = test_device();
    return config;
}

// Multi-query and multi-head attention from scratch: projections with biases, mask and padding of 1 = masked. On a slow
// device of the first sequence.
void from_scratch(const std::string &name, int32_t num_heads, int32_t num_kv_heads) {
    const FormFile file(name);
    heed::LayerConfig config = on_device();
    config.max_batch = sized(file.extent("x", 0), 1);
    config.max_q_len = file.extent("x", 1);
    config.dim_in = file.extent("x", 2);
    config.dim_out = file.extent("wo", 0);
    config.num_heads = num_heads;
    config.num_kv_heads = num_kv_heads;
    config.head_dim = file.extent("wq", 0) / num_heads;
    config.head_dim_v = file.extent("wo", 1) / num_heads;
    config.scale = 1 / std::sqrt(static_cast<float>(config.head_dim));
    config.mask_true_hides = true;
    const heed::Layer layer(config, file.weights());

    FormCall call(layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("x");
    call.args.mask = file.find("mask");
    call.args.mask_shape[0] = call.args.mask_shape[1] = 1;  // [seq, seq] for every sequence and head
    if (file.has("key_padding")) call.args.key_padding = file.find("key_padding");
    file.expect("y", call.forward(config.dim_out));
}

TEST_F(Forms, MultiQueryFromScratch) { from_scratch("mqa_scratch", 8, 1); }
TEST_F(Forms, MultiQueryFromScratchNarrowV) { from_scratch("mqa_scratch_narrow_v", 8, 1); }
TEST_F(Forms, MultiHeadFromScratch) { from_scratch("mha_scratch", 8, 8); }

// One weight for q, k and v; past keys and values; bias, key padding, clip, norms; attention weights.
void fused(const std::string &name, int32_t num_kv_heads, float clip, float scale, heed_kv_storage storage) {
    SCOPED_TRACE(storage == HEED_KV_PAGED ? "paged" : "contiguous");
    const FormFile file(name);
    heed::LayerConfig config = on_device();
    config.weight_layout = HEED_WEIGHTS_FUSED;
    config.dim_in = 128;
    config.num_heads = 8;
    config.num_kv_heads = num_kv_heads;
    config.scale = scale;
    config.causal = true;
    config.clip_qkv = clip;
    config.qk_norm = file.has("q_norm_weight") ? HEED_QK_NORM_MODEL : HEED_QK_NORM_NONE;
    config.max_batch = file.extent("x", 0);
    config.max_q_len = 36;
    config.max_kv_len = file.extent("x", 1);
    const heed::Layer layer(config, file.weights());
    heed::CacheConfig sizes;
    sizes.storage = storage;
    sizes.batch = config.max_batch;
    sizes.capacity = config.max_kv_len;
    sizes.page_size = 7;
    sizes.num_pages = 18;
    const heed::Cache past(layer, sizes);

    int32_t first = 0, step = 0;
    for (const int32_t q_len : {36, 1, 3, 1}) {
        FormCall call(layer, config.max_batch, q_len);
        const auto x = file.columns<float>("x", 1, first, q_len);
        first += q_len;
        const auto bias = file.columns<float>("bias", 3, 0, first);
        const auto padding = file.columns<uint8_t>("key_padding", 1, 0, first);
        std::vector<float> probs(static_cast<size_t>(config.max_batch * 8 * q_len * first));
        call.args.x = heed::tensor(x.data(), x.size());
        call.args.cache = past.get();
        call.args.bias = heed::tensor(bias.data(), bias.size());
        call.args.bias_shape[0] = call.args.bias_shape[2] = 1;
        call.args.key_padding = heed::tensor(padding.data(), padding.size());
        call.args.probs = heed::tensor(probs.data(), probs.size());
        file.expect("y" + std::to_string(step), call.forward(128));
        file.expect("probs" + std::to_string(step), probs);
        step++;
    }
    file.expect_cache(past.view());
}

TEST_F(Forms, FusedMultiHead) {
    for (const heed_kv_storage storage : f32_storages()) fused("fused_mha", 8, 2, 1, storage);
}
TEST_F(Forms, FusedMultiQuery) {
    for (const heed_kv_storage storage : f32_storages()) fused("fused_mqa", 1, 1.5f, 0.25f, storage);
}
TEST_F(Forms, FusedGroupedQuery) {
    for (const heed_kv_storage storage : f32_storages()) fused("fused_gqa", 2, 1, NAN, storage);
}

// The functions of the multi-query attention paper: einsum layouts, separate context, an additive mask, scale 1.
heed::LayerConfig paper_config(const FormFile &file) {
    heed::LayerConfig config = on_device();
    config.weight_layout = HEED_WEIGHTS_EINSUM;
    config.dim_in = file.extent("X", 2);
    config.num_heads = file.extent("P_q", 0);
    config.num_kv_heads = file.rank("P_k") == 3 ? config.num_heads : 1;
    config.head_dim = file.extent("P_q", 2);
    config.head_dim_v = file.extent("P_o", 2);
    config.scale = 1;
    config.max_batch = file.extent("X", 0);
    config.max_q_len = file.extent("X", 1);
    return config;
}

void paper(const std::string &name) {
    const FormFile file(name);
    heed::LayerConfig config = paper_config(file);
    config.cross = true;
    config.max_kv_len = file.extent("M", 1);
    const heed::Layer layer(config, file.weights("P_q", "P_k", "P_v", "P_o"));
    heed::CacheConfig sizes;
    sizes.batch = config.max_batch;
    sizes.capacity = config.max_kv_len;
    const heed::Cache prepared(layer, sizes);

    FormCall call(layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("X");
    call.args.bias = file.find("bias");
    call.args.context = file.find("M");
    call.args.context_len = config.max_kv_len;
    const std::vector<float> once = call.forward(config.dim_in);
    file.expect("y", once);

    // Projected once, used for many steps.
    heed::check(call_prepare(layer.get(), prepared.get(), config.max_batch, config.max_kv_len, &call.args.context,
                             nullptr, &call.args.execution));
    call.args.context = {};
    call.args.cache = prepared.get();
    for (int32_t step = 0; step < 2; step++) file.expect("y", call.forward(config.dim_in));
}

TEST_F(Forms, PaperSingleQuery) { paper("paper_single"); }
TEST_F(Forms, PaperMultiHead) { paper("paper_mha"); }
TEST_F(Forms, PaperMultiQuery) { paper("paper_mqa"); }

// Step by step through a cache equals batched causal self attention.
void incremental(const std::string &name) {
    const FormFile file(name);
    heed::LayerConfig config = paper_config(file);
    config.causal = true;
    config.max_batch = sized(config.max_batch, 1);
    const heed::Layer layer(config, file.weights("P_q", "P_k", "P_v", "P_o"));
    FormCall batched(layer, config.max_batch, config.max_q_len);
    batched.args.x = file.find("X");
    file.expect("y", batched.forward(config.dim_in));

    heed::CacheConfig sizes;
    sizes.batch = config.max_batch;
    sizes.capacity = config.max_q_len;
    const heed::Cache cache(layer, sizes);
    FormCall step(layer, config.max_batch, 1);
    step.args.cache = cache.get();
    std::vector<float> all(static_cast<size_t>(config.max_batch * config.max_q_len * config.dim_in));
    for (int32_t token = 0; token < config.max_q_len; token++) {
        const auto x = file.columns<float>("X", 1, token, 1);
        step.args.x = heed::tensor(x.data(), x.size());
        const std::vector<float> y = step.forward(config.dim_in);
        for (int32_t b = 0; b < config.max_batch; b++) {
            std::copy_n(y.data() + b * config.dim_in, config.dim_in,
                        all.data() + (b * config.max_q_len + token) * config.dim_in);
        }
    }
    file.expect("y", all);
}

TEST_F(Forms, IncrementalMultiHead) { incremental("incremental_mha"); }
TEST_F(Forms, IncrementalMultiQuery) { incremental("incremental_mqa"); }

// Grouped-query attention: mask of 0 = masked, dropout on the probabilities in training.
void with_dropout(const std::string &name, int32_t num_heads, int32_t num_kv_heads, float p) {
    const FormFile file(name);
    heed::LayerConfig config = on_device();
    config.dim_in = file.extent("x", 2);
    config.num_heads = num_heads;
    config.num_kv_heads = num_kv_heads;  // head_dim: dim_in / num_heads
    config.dropout_p = p;
    config.max_batch = sized(file.extent("x", 0), 1);
    config.max_q_len = file.extent("x", 1);
    const heed::Layer layer(config, file.weights());
    FormCall call(layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("x");
    call.args.mask = file.find("mask");
    for (int32_t axis = 0; axis < 4; axis++) call.args.mask_shape[axis] = file.extent("mask", axis);
    call.args.mask_shape[0] = std::min(call.args.mask_shape[0], config.max_batch);
    call.args.dropout_seed = 1234567890123;
    call.args.dropout_offset = 77;
    file.expect("y_eval", call.forward(config.dim_in));
    SKIP_WITHOUT_KERNELS(HEED_F32, HEED_F32, HEED_KV_CONTIGUOUS, HEED_FEATURE_DROPOUT);
    call.args.training = true;
    file.expect("y_train", call.forward(config.dim_in));
}

TEST_F(Forms, GroupedQueryWithDropout) { with_dropout("gqa_8_4", 8, 4, 0.1f); }
TEST_F(Forms, GroupedQueryWithDropoutLarge) { with_dropout("gqa_large", 16, 4, 0.25f); }
TEST_F(Forms, GroupedQueryAsMultiHead) { with_dropout("gqa_as_mha", 8, 8, 0.1f); }
TEST_F(Forms, GroupedQueryAsMultiQuery) { with_dropout("gqa_as_mqa", 8, 1, 0.1f); }

}  // namespace

std::string form_folder;

}  // namespace heed_test

int main(int argc, char **argv) {
    testing::InitGoogleTest(&argc, argv);
    if (argc != 2) return std::fprintf(stderr, "usage: heed_layer_forms_test FOLDER\n"), 2;
    heed_test::form_folder = argv[1];
    return RUN_ALL_TESTS();
}
