#include "bench/demo/train/dense.h"

#include <algorithm>
#include <cmath>

namespace heed_train {
namespace {

float inverse_rms(const float *x, int32_t dim) {
    float squares = 0;
    for (int32_t i = 0; i < dim; i++) squares += x[i] * x[i];
    return 1 / std::sqrt(squares / static_cast<float>(dim) + 1e-5f);
}

}  // namespace

Parameter::Parameter(size_t size, float deviation, bool constant, std::mt19937_64 *random)
    : values(size, deviation), gradients(size), means(size), squares(size) {
    if (constant) return;
    std::normal_distribution<float> normal(0, deviation);
    for (float &x : values) x = normal(*random);
}

void Adam::update(Parameter *p, int32_t step, float factor) const {
    const float unbias1 = 1 / (1 - std::pow(beta1, static_cast<float>(step)));
    const float unbias2 = 1 / (1 - std::pow(beta2, static_cast<float>(step)));
    for (size_t i = 0; i < p->values.size(); i++) {
        const float g = p->gradients[i] * factor;
        p->means[i] = beta1 * p->means[i] + (1 - beta1) * g;
        p->squares[i] = beta2 * p->squares[i] + (1 - beta2) * g * g;
        const float move = p->means[i] * unbias1 / (std::sqrt(p->squares[i] * unbias2) + 1e-8f);
        p->values[i] -= rate * (move + decay * p->values[i]);
        p->gradients[i] = 0;
    }
}

Dense::Dense(int32_t in, int32_t out, std::mt19937_64 *random)
    : dim_in(in), dim_out(out),
      weight(static_cast<size_t>(in) * static_cast<size_t>(out), 1 / std::sqrt(static_cast<float>(in)), false, random) {
}

void Dense::forward(const std::vector<float> &x, std::vector<float> *y, const heed_execution &execution) const {
    const auto rows = static_cast<int32_t>(x.size() / static_cast<size_t>(dim_in));
    y->resize(static_cast<size_t>(rows) * static_cast<size_t>(dim_out));
    const heed::LinearWeights packed(dim_in, dim_out, weight.tensor());
    const heed_linear_out out = {1, dim_out, heed::tensor(y->data(), y->size()), {}, nullptr};
    heed_linear_args args = {};
    args.struct_size = sizeof(args);
    args.batch = 1;
    args.len = rows;
    args.x = heed::tensor(x.data(), x.size());
    args.num_outs = 1;
    args.outs = &out;
    args.execution = execution;
    packed.run(args);
}

void Dense::backward(const std::vector<float> &x, const std::vector<float> &dy, std::vector<float> *dx,
                     const heed_execution &execution) {
    heed_linear_backward_args args = {};
    args.struct_size = sizeof(args);
    args.dtype = HEED_F32;
    args.num_rows = static_cast<int32_t>(x.size() / static_cast<size_t>(dim_in));
    args.dim_in = dim_in;
    args.dim_out = dim_out;
    args.x = heed::tensor(x.data(), x.size());
    args.weight = weight.tensor();
    args.dy = heed::tensor(dy.data(), dy.size());
    dx->resize(x.size());
    args.dx = heed::tensor(dx->data(), dx->size());
    args.dweight = weight.gradient();
    args.execution = execution;
    heed::check(heed_linear_backward(&args));
}

RmsNorm::RmsNorm(int32_t width) : dim(width), scale(static_cast<size_t>(width), 1, true, nullptr) {}

void RmsNorm::forward(const std::vector<float> &x, std::vector<float> *y) const {
    y->resize(x.size());
    const float *const weight = scale.values.data();
    for (size_t at = 0; at < x.size(); at += static_cast<size_t>(dim)) {
        const float factor = inverse_rms(x.data() + at, dim);
        for (int32_t i = 0; i < dim; i++)
            (*y)[at + static_cast<size_t>(i)] = x[at + static_cast<size_t>(i)] * factor * weight[i];
    }
}

void RmsNorm::backward(const std::vector<float> &x, const std::vector<float> &dy, std::vector<float> *dx) {
    const float *const weight = scale.values.data();
    for (size_t at = 0; at < x.size(); at += static_cast<size_t>(dim)) {
        const float *const row = x.data() + at, *const d = dy.data() + at;
        float *const to = dx->data() + at;
        const float factor = inverse_rms(row, dim);
        float products = 0;
        for (int32_t i = 0; i < dim; i++) products += d[i] * weight[i] * row[i];
        const float shared = products * factor * factor / static_cast<float>(dim);
        for (int32_t i = 0; i < dim; i++) {
            scale.gradients[static_cast<size_t>(i)] += d[i] * row[i] * factor;
            to[i] += factor * (d[i] * weight[i] - row[i] * shared);
        }
    }
}

double cross_entropy(const std::vector<int32_t> &targets, std::vector<float> *logits) {
    const size_t width = logits->size() / targets.size();
    const float share = 1 / static_cast<float>(targets.size());
    double loss = 0;
    for (size_t row = 0; row < targets.size(); row++) {
        float *const x = logits->data() + row * width;
        const float max = *std::max_element(x, x + width);
        float sum = 0;
        for (size_t i = 0; i < width; i++) sum += std::exp(x[i] - max);
        const auto target = static_cast<size_t>(targets[row]);
        loss += static_cast<double>(std::log(sum) - (x[target] - max));
        for (size_t i = 0; i < width; i++) x[i] = std::exp(x[i] - max) / sum * share;
        x[target] -= share;
    }
    return loss * static_cast<double>(share);
}

}  // namespace heed_train
