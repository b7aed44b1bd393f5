#include "bench/demo/minilm/model.h"

#include <stdexcept>
#include <vector>

namespace minilm {
namespace {

using Shape = std::vector<int64_t>;

std::string to_string(const Shape &shape) {
    std::string text;
    for (const int64_t extent : shape) text += (text.empty() ? "" : ", ") + std::to_string(extent);
    return "[" + text + "]";
}

const float *find(const heed::WeightsFile &file, const std::string &name, const Shape &shape) {
    const auto found = file.find(name);
    if (found.tensor.dtype != HEED_F32) throw std::runtime_error("the tensor \"" + name + "\" is not of type F32");
    if (found.shape != shape) {
        throw std::runtime_error("the tensor \"" + name + "\" has the shape " + to_string(found.shape) +
                                 "; the model needs " + to_string(shape));
    }
    return static_cast<const float *>(found.tensor.data);
}

RowView find_row(const heed::WeightsFile &file, const std::string &name, int64_t columns) {
    return RowView(find(file, name, {columns}), columns);
}

}  // namespace

MatrixView find_matrix(const heed::WeightsFile &file, const std::string &name, int64_t rows, int64_t columns) {
    return MatrixView(find(file, name, {rows, columns}), rows, columns);
}

Linear find_linear(const heed::WeightsFile &file, const std::string &name, int64_t outputs, int64_t inputs) {
    return {find_matrix(file, name + ".weight", outputs, inputs), find_row(file, name + ".bias", outputs)};
}

LayerNorm find_norm(const heed::WeightsFile &file, const std::string &name) {
    return {find_row(file, name + ".weight", hidden), find_row(file, name + ".bias", hidden)};
}

Matrix apply(const Linear &linear, const Eigen::Ref<const Matrix> &x) {
    Matrix y(x.rows(), linear.weight.rows());
    y.noalias() = x * linear.weight.transpose();
    y.rowwise() += linear.bias;
    return y;
}

}  // namespace minilm
