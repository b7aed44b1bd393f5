// A layer on kernels of this project's own: clipped, normalised and rotated, under a bias and a key padding; its
// gradient is the slope of its outputs.
#include <heed/heed.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int dim = 64, len = 11;

std::vector<float> waves(size_t count, float step) {
    std::vector<float> values(count);
    for (size_t i = 0; i < count; i++) values[i] = 0.3f * std::sin(step * static_cast<float>(i));
    return values;
}

}  // namespace

int main() {
    heed::LayerConfig config;
    config.dim_in = dim, config.num_heads = 2, config.num_kv_heads = 1;
    config.causal = true;
    config.clip_qkv = 1;
    config.qk_norm = HEED_QK_NORM_HEAD;
    config.rotary_dim = 8, config.max_position = len;
    config.max_batch = 1, config.max_q_len = config.max_kv_len = len;
    const std::vector<float> wq = waves(dim * dim, 1.7f), wk = waves(dim / 2 * dim, 1.3f),
                             wv = waves(dim / 2 * dim, 1.1f), wo = waves(dim * dim, 1.9f), norm(dim / 2, 1.0f),
                             cos = waves(len * 4, 2.3f), sin = waves(len * 4, 0.7f), bias = waves(len * len, 0.9f),
                             dy = waves(len * dim, 0.37f);
    heed::LayerWeights weights;
    weights.wq = heed::tensor(wq.data(), wq.size()), weights.wk = heed::tensor(wk.data(), wk.size());
    weights.wv = heed::tensor(wv.data(), wv.size()), weights.wo = heed::tensor(wo.data(), wo.size());
    weights.q_norm_weight = weights.k_norm_weight = heed::tensor(norm.data(), norm.size());
    weights.rope_cos = heed::tensor(cos.data(), cos.size()), weights.rope_sin = heed::tensor(sin.data(), sin.size());
    const heed::Layer layer(config, weights);
    const heed::Workspace workspace = layer.make_workspace();

    std::vector<float> x = waves(len * dim, 0.53f), y(x.size()), dx(x.size());
    std::vector<uint8_t> padding(len, 1);
    padding[2] = 0;
    heed::LayerArgs args;
    args.batch = 1, args.q_len = len;
    args.x = heed::tensor(x.data(), x.size()), args.y = heed::tensor(y.data(), y.size());
    args.key_padding = heed::tensor(padding.data(), padding.size());
    args.bias = heed::tensor(bias.data(), bias.size()), args.bias_shape[1] = 1;
    workspace.attach(args.execution);
    heed::LayerGradients gradients;
    gradients.dy = heed::tensor(dy.data(), dy.size()), gradients.dx = heed::tensor(dx.data(), dx.size());
    layer.backward(args, gradients);

    // The slope of sum(dy * y) along waves.
    const std::vector<float> direction = waves(x.size(), 0.71f), start = x;
    const float step = 1e-3f;
    double found = 0, slope = 0;
    for (const float side : {step, -step}) {
        for (size_t i = 0; i < x.size(); i++) x[i] = start[i] + side * direction[i];
        layer.forward(args);
        for (size_t i = 0; i < y.size(); i++) slope += double(dy[i]) * double(y[i]) / (2 * double(side));
    }
    for (size_t i = 0; i < x.size(); i++) found += double(dx[i]) * double(direction[i]);
    std::printf("gradient %.6f, slope %.6f\n", found, slope);
    return std::abs(found - slope) < 0.005 * std::abs(slope) + 1e-4 ? 0 : 1;
}
