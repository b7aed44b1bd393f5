// Gradient descent on one attention layer: it learns to give what another layer gives.
#include <cstdio>
#include <heed/heed.hpp>
#include <random>

namespace {

constexpr int32_t batch = 4, q_len = 64, dim = 64;
constexpr size_t activations = size_t{batch} * q_len * dim;

struct Parameters {
    std::vector<float> wq, wk, wv, wo;

    Parameters(std::mt19937 &random, float size) : wq(dim * dim), wk(dim / 4 * dim), wv(dim / 4 * dim), wo(dim * dim) {
        std::normal_distribution<float> normal(0, size);
        for (std::vector<float> *weight : {&wq, &wk, &wv, &wo}) {
            for (float &value : *weight) value = size == 0 ? 0 : normal(random);
        }
    }
    heed::LayerWeights views() const {
        heed::LayerWeights weights;
        weights.wq = heed::tensor(wq.data(), wq.size()), weights.wk = heed::tensor(wk.data(), wk.size());
        weights.wv = heed::tensor(wv.data(), wv.size()), weights.wo = heed::tensor(wo.data(), wo.size());
        return weights;
    }
    void step(float rate, const Parameters &gradients) {
        std::vector<float> *const to[] = {&wq, &wk, &wv, &wo};
        const std::vector<float> *const by[] = {&gradients.wq, &gradients.wk, &gradients.wv, &gradients.wo};
        for (int w = 0; w < 4; w++) {
            for (size_t i = 0; i < to[w]->size(); i++) (*to[w])[i] -= rate * (*by[w])[i];
        }
    }
};

heed::Layer make_layer(const Parameters &parameters) {
    heed::LayerConfig config;
    config.dim_in = dim, config.num_heads = 4, config.num_kv_heads = 1, config.causal = true;
    config.max_batch = batch, config.max_q_len = config.max_kv_len = q_len;
    return heed::Layer(config, parameters.views());
}

heed::LayerArgs make_args(const std::vector<float> &x, std::vector<float> &y, const heed::Workspace &workspace) {
    heed::LayerArgs args;
    args.batch = batch, args.q_len = q_len;
    args.x = heed::tensor(x.data(), x.size()), args.y = heed::tensor(y.data(), y.size());
    workspace.attach(args.execution);
    return args;
}

}  // namespace

int main() {
    std::mt19937 random(1);
    const heed::Layer teacher = make_layer(Parameters(random, 0.125f));
    Parameters parameters(random, 0.125f);
    const heed::Workspace workspace = teacher.make_workspace();  // of equal configurations: one size
    std::normal_distribution<float> normal;
    std::vector<float> x(activations), wanted(activations), y(activations), dy(activations);
    double first = 0, loss = 0;
    for (int step = 0; step < 60; step++) {
        for (float &value : x) value = normal(random);
        teacher.forward(make_args(x, wanted, workspace));
        // [step]
        const heed::Layer layer = make_layer(parameters);  // packs the weights anew
        const heed::LayerArgs args = make_args(x, y, workspace);
        layer.forward(args);
        loss = 0;
        for (size_t i = 0; i < activations; i++) {
            dy[i] = 2 * (y[i] - wanted[i]) / static_cast<float>(activations);
            loss += (y[i] - wanted[i]) * (y[i] - wanted[i]) / activations;
        }
        const Parameters gradients(random, 0);  // zeros: gradients are summed into what is given
        heed::LayerGradients asked;             // data NULL: that gradient is not wanted
        asked.dy = heed::tensor(dy.data(), dy.size());
        static_cast<heed_layer_weights &>(asked.dweights) = gradients.views();
        layer.backward(args, asked);  // computes the activations anew: nothing is kept between the calls
        parameters.step(8, gradients);
        // [/step]
        if (step == 0) first = loss;
        if (step % 10 == 0) std::printf("step %d: loss %.6f\n", step, loss);
    }
    std::printf("loss %.6f -> %.6f\n", first, loss);
    return loss < first / 2 ? 0 : 1;
}
