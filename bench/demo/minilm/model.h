// all-MiniLM-L6-v2: its sizes, and its weights as views of the file.
#pragma once
#include <heed/heed.hpp>

#include <Eigen/Core>
#include <cstdint>
#include <string>

namespace minilm {

constexpr int32_t num_layers = 6;
constexpr int32_t num_heads = 12;
constexpr int32_t head_dim = 32;
constexpr int32_t hidden = num_heads * head_dim;
constexpr int32_t intermediate = 1536;
constexpr int32_t vocabulary = 30522;
constexpr int32_t max_tokens = 512;

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::Matrix<float, 1, Eigen::Dynamic>;
using MatrixView = Eigen::Map<const Matrix>;
using RowView = Eigen::Map<const Row>;

// y = x * weight^T + bias
struct Linear {
    MatrixView weight;  // [outputs, inputs]
    RowView bias;
};

struct LayerNorm {
    RowView gain, bias;
};

// Views live as long as the file. Throws std::runtime_error when a tensor is missing or has another type or shape.
MatrixView find_matrix(const heed::WeightsFile &file, const std::string &name, int64_t rows, int64_t columns);
Linear find_linear(const heed::WeightsFile &file, const std::string &name, int64_t outputs, int64_t inputs);
LayerNorm find_norm(const heed::WeightsFile &file, const std::string &name);

template <typename View>
heed_tensor tensor(const View &view) {
    return heed::tensor(view.data(), static_cast<size_t>(view.size()));
}

Matrix apply(const Linear &linear, const Eigen::Ref<const Matrix> &x);

}  // namespace minilm
