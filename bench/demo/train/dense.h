// What is between Heed's calls: parameters with their gradients, norms, losses, the optimiser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "heed/heed.hpp"

namespace heed_train {

// One trained tensor with its gradient and the moments of Adam.
struct Parameter {
    // Normal with this deviation, or all `deviation` where `constant`.
    Parameter(size_t size, float deviation, bool constant, std::mt19937_64 *random);

    heed_tensor tensor() const { return heed::tensor(values.data(), values.size()); }
    heed_tensor gradient() { return heed::tensor(gradients.data(), gradients.size()); }

    std::vector<float> values, gradients, means, squares;
};

// Adam (Kingma and Ba, arXiv 1412.6980) with decoupled weight decay (arXiv 1711.05101).
struct Adam {
    float rate, decay = 0.1f, beta1 = 0.9f, beta2 = 0.99f;
    // Step number `step`, from 1 on; the gradients times `factor`, then zero.
    void update(Parameter *parameter, int32_t step, float factor) const;
};

// y = x W^T over rows, and its gradients, which are summed; dx may be NULL.
struct Dense {
    Dense(int32_t in, int32_t out, std::mt19937_64 *random);
    void forward(const std::vector<float> &x, std::vector<float> *y, const heed_execution &execution) const;
    void backward(const std::vector<float> &x, const std::vector<float> &dy, std::vector<float> *dx,
                  const heed_execution &execution);

    int32_t dim_in, dim_out;
    Parameter weight;
};

// y = x / rms(x) * scale, rms(x)^2 = mean(x^2) + 1e-5 (Zhang and Sennrich, arXiv 1910.07467).
struct RmsNorm {
    explicit RmsNorm(int32_t width);
    void forward(const std::vector<float> &x, std::vector<float> *y) const;
    // Adds to dx.
    void backward(const std::vector<float> &x, const std::vector<float> &dy, std::vector<float> *dx);

    int32_t dim;
    Parameter scale;
};

// Mean negative log likelihood of the targets under softmax(logits), in nats; the logits become its gradient.
double cross_entropy(const std::vector<int32_t> &targets, std::vector<float> *logits);

}  // namespace heed_train
