// heed_layer_backward of the attention layers of five published systems, and of one with norms, RoPE and sinks, against
// slopes of the formulas in numpy float64 (gradients.py). Usage: heed_layer_gradients_test FOLDER.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/layer/form_file.h"

namespace heed_test {
namespace {

// A call with gradients of all that has slopes in the file.
class GradientCall {
public:
    GradientCall(const FormFile &file, const heed::Layer &layer, int32_t batch, int32_t q_len)
        : file_(file), layer_(layer), workspace_(layer.make_workspace()) {
        args.batch = batch;
        args.q_len = q_len;
        workspace_.attach(args.execution);
        args.execution.device = test_device();
        gradients_.dy = file.find("dy");
    }

    static constexpr int32_t max_threads = 3;  // on CUDA: calls
    heed::LayerArgs args;

    // The gradient of the tensor `name` goes to `to`, on top of ones.
    void want(const char *name, heed_tensor *to) {
        if (!file_.has(name)) return;
        std::vector<float> &gradient = found_[name];
        gradient.assign(static_cast<size_t>(file_.find(name).size), 1.0f);
        *to = heed::tensor(gradient.data(), gradient.size());
    }
    void want_weights(const char *wq = "wq", const char *wk = "wk", const char *wv = "wv", const char *wo = "wo") {
        heed_layer_weights &w = gradients_.dweights;
        const std::pair<const char *, heed_tensor *> tensors[] = {{wq, &w.wq},
                                                                  {wk, &w.wk},
                                                                  {wv, &w.wv},
                                                                  {wo, &w.wo},
                                                                  {"wqkv", &w.wqkv},
                                                                  {"bq", &w.bq},
                                                                  {"bk", &w.bk},
                                                                  {"bv", &w.bv},
                                                                  {"bo", &w.bo},
                                                                  {"bqkv", &w.bqkv},
                                                                  {"sink", &w.sink},
                                                                  {"q_norm_weight", &w.q_norm_weight},
                                                                  {"q_norm_bias", &w.q_norm_bias},
                                                                  {"k_norm_weight", &w.k_norm_weight},
                                                                  {"k_norm_bias", &w.k_norm_bias}};
        for (const auto &[name, tensor] : tensors) want(name, tensor);
    }
    heed::LayerGradients &gradients() { return gradients_; }

    // Runs with 1..max_threads threads for the same bits, and holds every gradient against its slopes.
    void check() {
        std::map<std::string, std::vector<float>> first;
        for (int32_t num_threads = 1; num_threads <= max_threads; num_threads++) {
            for (auto &[name, gradient] : found_) std::fill(gradient.begin(), gradient.end(), 1.0f);
            args.execution.num_threads = num_threads;
            ASSERT_EQ(call_backward(layer_.get(), &args, &gradients_), HEED_OK) << heed_last_error();
            if (num_threads == 1) first = found_;
            EXPECT_EQ(found_, first) << num_threads << " threads";
        }
        for (const auto &[name, gradient] : found_) expect_slopes(name, gradient);
    }

private:
    static double norm_of(const std::vector<float> &gradient) {
        double squares = 0;
        for (const float g : gradient) squares += std::pow(static_cast<double>(g) - 1, 2);
        return std::sqrt(squares);
    }

    // What moves all logits of a row alike has gradient 0: the rounding of what would move one, as its partner of q.
    double size_of(const std::string &name, const std::vector<float> &gradient) const {
        const auto partner = name == "bk" ? found_.find("bq") : found_.find("q_norm_bias");
        const bool cancels = name == "bk" || name == "k_norm_bias";
        return std::max(norm_of(gradient), cancels ? norm_of(partner->second) : 0);
    }

    // |g . u - slope| in units of |g|: errors of the elements, each below 3e-6 of the root mean square gradient, add up
    // by chance to 3e-6 |g|; next to it the ones, to which the gradient was added in float.
    void expect_slopes(const std::string &name, const std::vector<float> &gradient) const {
        const auto directions = file_.columns<float>(name + "_directions", 0, 0, file_.extent(name + "_directions", 0));
        const auto slopes = file_.columns<float>(name + "_slopes", 0, 0, file_.extent(name + "_slopes", 0));
        const double size = size_of(name, gradient);
        ASSERT_GT(size, 0) << name;
        const double bound = 3e-6 * size + 0x1p-24 * std::sqrt(static_cast<double>(gradient.size()));
        double worst = 0;
        for (size_t s = 0; s < slopes.size(); s++) {
            double slope = 0;
            for (size_t i = 0; i < gradient.size(); i++) {
                slope +=
                    (static_cast<double>(gradient[i]) - 1) * static_cast<double>(directions[s * gradient.size() + i]);
            }
            worst = std::max(worst, std::fabs(slope - static_cast<double>(slopes[s])));
        }
        EXPECT_LE(worst, bound) << name;
        std::printf("[   RATIO  ] %s: error / allowed %.3f\n", name.c_str(), worst / bound);
    }

    const FormFile &file_;
    const heed::Layer &layer_;
    const heed::Workspace workspace_;
    heed::LayerGradients gradients_;
    std::map<std::string, std::vector<float>> found_;
};

heed::LayerConfig on_device() {
    enter_test_device();
    heed::LayerConfig config;
    config.device = test_device();
    return config;
}

heed::LayerConfig config_of(const FormFile &file, int32_t num_heads, int32_t num_kv_heads) {
    heed::LayerConfig config = on_device();
    config.max_batch = file.extent("x", 0);
    config.max_q_len = file.extent("x", 1);
    config.dim_in = file.extent("x", 2);
    config.dim_out = file.extent("wo", 0);
    config.num_heads = num_heads;
    config.num_kv_heads = num_kv_heads;
    config.head_dim_v = file.extent("wo", 1) / num_heads;
    config.max_threads = GradientCall::max_threads;
    return config;
}

void from_scratch(const std::string &name, int32_t num_kv_heads) {
    const FormFile file(name);
    heed::LayerConfig config = config_of(file, 4, num_kv_heads);
    config.head_dim = file.extent("wq", 0) / 4;
    config.mask_true_hides = true;
    const heed::Layer layer(config, file.weights());
    GradientCall call(file, layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("x");
    call.args.mask = file.find("mask");
    call.args.mask_shape[0] = call.args.mask_shape[1] = 1;
    if (file.has("key_padding")) call.args.key_padding = file.find("key_padding");
    call.want("x", &call.gradients().dx);
    call.want_weights();
    call.check();
}

TEST(Gradients, MultiQueryFromScratch) { from_scratch("mqa_scratch", 1); }
TEST(Gradients, MultiHeadFromScratch) { from_scratch("mha_scratch", 4); }

void fused(const std::string &name, int32_t num_kv_heads, float clip, float scale) {
    const FormFile file(name);
    heed::LayerConfig config = config_of(file, 4, num_kv_heads);
    config.weight_layout = HEED_WEIGHTS_FUSED;
    config.scale = scale;
    config.causal = true;
    config.clip_qkv = clip;
    config.qk_norm = file.has("q_norm_weight") ? HEED_QK_NORM_MODEL : HEED_QK_NORM_NONE;
    const heed::Layer layer(config, file.weights());
    GradientCall call(file, layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("x");
    call.args.bias = file.find("bias");
    call.args.bias_shape[0] = call.args.bias_shape[2] = 1;
    call.args.key_padding = file.find("key_padding");
    call.want("x", &call.gradients().dx);
    call.want("bias", &call.gradients().dbias);
    call.want_weights();
    call.check();
}

TEST(Gradients, FusedGroupedQuery) { fused("fused_gqa", 2, 1, NAN); }
TEST(Gradients, FusedMultiQuery) { fused("fused_mqa", 1, 1.5f, 1); }

heed::LayerConfig paper_config(const FormFile &file) {
    heed::LayerConfig config = on_device();
    config.weight_layout = HEED_WEIGHTS_EINSUM;
    config.max_batch = file.extent("X", 0);
    config.max_q_len = file.extent("X", 1);
    config.dim_in = file.extent("X", 2);
    config.num_heads = file.extent("P_q", 0);
    config.num_kv_heads = file.rank("P_k") == 3 ? config.num_heads : 1;
    config.head_dim = file.extent("P_q", 2);
    config.head_dim_v = file.extent("P_o", 2);
    config.scale = 1;
    config.max_threads = GradientCall::max_threads;
    return config;
}

void paper(const std::string &name) {
    const FormFile file(name);
    heed::LayerConfig config = paper_config(file);
    config.cross = true;
    config.max_kv_len = file.extent("M", 1);
    const heed::Layer layer(config, file.weights("P_q", "P_k", "P_v", "P_o"));
    GradientCall call(file, layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("X");
    call.args.context = file.find("M");
    call.args.context_len = config.max_kv_len;
    call.args.bias = file.find("bias");
    call.want("X", &call.gradients().dx);
    call.want("M", &call.gradients().dcontext);
    call.want("bias", &call.gradients().dbias);
    call.want_weights("P_q", "P_k", "P_v", "P_o");
    call.check();
}

TEST(Gradients, PaperMultiHead) { paper("paper_mha"); }
TEST(Gradients, PaperMultiQuery) { paper("paper_mqa"); }

TEST(Gradients, IncrementalMultiQuery) {
    const FormFile file("incremental_mqa");
    heed::LayerConfig config = paper_config(file);
    config.causal = true;
    const heed::Layer layer(config, file.weights("P_q", "P_k", "P_v", "P_o"));
    GradientCall call(file, layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("X");
    call.want("X", &call.gradients().dx);
    call.want_weights("P_q", "P_k", "P_v", "P_o");
    call.check();
}

TEST(Gradients, GroupedQueryWithDropout) {
    const FormFile file("gqa_dropout");
    heed::LayerConfig config = config_of(file, 4, 2);
    config.dropout_p = 0.25f;
    const heed::Layer layer(config, file.weights());
    GradientCall call(file, layer, config.max_batch, config.max_q_len);
    call.args.x = file.find("x");
    call.args.mask = file.find("mask");
    call.args.mask_shape[1] = 1;
    call.args.training = true;
    call.args.dropout_seed = 1234567890123;
    call.args.dropout_offset = 77;
    call.want("x", &call.gradients().dx);
    call.want_weights();
    call.check();
}

// What comes after q_lens is NaN here.
TEST(Gradients, NormsRopeSinksAndLengths) {
    const FormFile file("modern_gqa");
    heed::LayerConfig config = config_of(file, 4, 2);
    config.causal = true;
    config.window_left = 6;
    config.softcap = 5;
    config.qk_norm = HEED_QK_NORM_HEAD;
    config.head_dim = 16;
    config.rotary_dim = 2 * file.extent("rope_cos", 1);
    config.max_position = file.extent("rope_cos", 0);
    heed::LayerWeights weights = file.weights();
    weights.rope_cos = file.find("rope_cos");
    weights.rope_sin = file.find("rope_sin");
    weights.sink = file.find("sink");
    const heed::Layer layer(config, weights);
    GradientCall call(file, layer, config.max_batch, config.max_q_len);
    std::vector<float> x = file.columns<float>("x", 0, 0, 3), dy = file.columns<float>("dy", 0, 0, 3);
    const auto *const q_lens = static_cast<const int32_t *>(file.find("q_lens").data);
    for (auto *const rows : {&x, &dy}) {
        const size_t width = rows->size() / 3 / 23;
        for (size_t row = 0; row < 3 * 23; row++) {
            if (static_cast<int32_t>(row % 23) < q_lens[row / 23]) continue;
            std::fill_n(rows->begin() + static_cast<ptrdiff_t>(row * width), width, NAN);
        }
    }
    call.args.x = heed::tensor(x.data(), x.size());
    call.args.q_lens = q_lens;
    call.gradients().dy = heed::tensor(dy.data(), dy.size());
    call.want("x", &call.gradients().dx);
    call.want_weights();
    call.check();
}

}  // namespace

std::string form_folder;

}  // namespace heed_test

int main(int argc, char **argv) {
    testing::InitGoogleTest(&argc, argv);
    if (argc != 2) return std::fprintf(stderr, "usage: heed_layer_gradients_test FOLDER\n"), 2;
    heed_test::form_folder = argv[1];
    return RUN_ALL_TESTS();
}
