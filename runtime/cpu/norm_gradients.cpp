// Gradients of layer norm, y = (x - mean) * factor * weight + bias with factor = 1 / sqrt(variance + epsilon):
//   dx = factor * (g - mean(g) - n * mean(g * n)), n = (x - mean) * factor, g = dy * weight
//   dweight = sum over rows of dy * n, dbias = sum over rows of dy
// (Ba, Kiros, Hinton 2016, arXiv:1607.06450.)
#include <algorithm>
#include <array>
#include <cmath>

#include "cpu/cpu_backend.h"
#include "ops/steps.h"
#include "weight_element.h"

namespace heed {
namespace {

// Mean and factor of a row, as the forward has them.
struct Moments {
    float mean, factor;
};

Moments moments_of(const float *x, int32_t length, float epsilon) {
    double sum = 0, squares = 0;
    for (int32_t i = 0; i < length; i++) sum += static_cast<double>(x[i]);
    const double mean = sum / length;
    for (int32_t i = 0; i < length; i++) {
        const double from_mean = static_cast<double>(x[i]) - mean;
        squares += from_mean * from_mean;
    }
    const double factor = 1 / std::sqrt(squares / length + static_cast<double>(epsilon));
    return {static_cast<float>(mean), static_cast<float>(factor)};
}

// x and dy hold a row; dy becomes dx.
void row_gradient(const Moments &m, const float *x, const float *weight, int32_t length, float *dy) {
    double sum = 0, products = 0;
    for (int32_t i = 0; i < length; i++) {
        const double g = static_cast<double>(dy[i]) * static_cast<double>(weight[i]);
        sum += g;
        products += g * static_cast<double>((x[i] - m.mean) * m.factor);
    }
    const auto mean_g = static_cast<float>(sum / length), mean_gn = static_cast<float>(products / length);
    for (int32_t i = 0; i < length; i++) {
        const float n = (x[i] - m.mean) * m.factor;
        dy[i] = m.factor * (dy[i] * weight[i] - mean_g - n * mean_gn);
    }
}

heed_status weight_gradients(const StepRun &run, const NormGradient &n, const HeapArray<Moments> &moments) {
    constexpr int64_t width = 64;
    const int64_t bytes = dtype_bytes(run.dtype);
    const auto block = [&](int64_t index, int32_t, char(&)[512]) {
        const int64_t first = index * width, count = std::min<int64_t>(width, n.length - first);
        std::array<double, width> weights = {}, biases = {};
        std::array<float, width> x, dy;
        for (int64_t row = 0; row < n.rows; row++) {
            const int64_t at = (row * n.length + first) * bytes;
            load_elements(static_cast<const char *>(n.x) + at, run.dtype, count, x.data());
            load_elements(static_cast<const char *>(n.dy) + at, run.dtype, count, dy.data());
            for (size_t i = 0; i < static_cast<size_t>(count); i++) {
                const float normal = (x[i] - moments[row].mean) * moments[row].factor;
                weights[i] += static_cast<double>(dy[i] * normal);
                biases[i] += static_cast<double>(dy[i]);
            }
        }
        for (int64_t i = 0; i < count; i++) {
            n.sums.dweight[first + i] = static_cast<float>(weights[static_cast<size_t>(i)]);
            n.sums.dbias[first + i] = static_cast<float>(biases[static_cast<size_t>(i)]);
        }
        return 0;
    };
    const double moved = 2.0 * static_cast<double>(n.rows * n.length * bytes);
    return run_op(run.name, &run.execution, op_threads(&run.execution, moved), (n.length + width - 1) / width, block);
}

}  // namespace

heed_status CpuBackend::norm_gradients(const StepRun &run, const NormGradient &n) const {
    constexpr int64_t share = 8;
    const int64_t bytes = n.length * int64_t{dtype_bytes(run.dtype)};
    const double moved = 3.0 * static_cast<double>(n.rows * bytes);
    const int32_t threads = op_threads(&run.execution, moved);
    HeapArray<Moments> moments;
    HeapArray<float> lines;  // of each thread: a row of x and one of dy
    heed_status status = moments.allocate(run.name, n.rows);
    if (!status) status = lines.allocate(run.name, int64_t{threads} * 2 * n.length);
    if (status) return status;
    const auto load = [&](const void *data, int64_t row, float *to) {
        load_elements(static_cast<const char *>(data) + row * bytes, run.dtype, n.length, to);
    };
    const auto find_moments = [&](int64_t index, int32_t item, char(&)[512]) {
        float *const x = lines.data() + int64_t{item} * 2 * n.length;
        for (int64_t row = index * share; row < std::min((index + 1) * share, n.rows); row++) {
            load(n.x, row, x);
            moments[row] = moments_of(x, n.length, n.epsilon);
        }
        return 0;
    };
    const auto find_rows = [&](int64_t index, int32_t item, char(&)[512]) {
        float *const x = lines.data() + int64_t{item} * 2 * n.length, *const dy = x + n.length;
        for (int64_t row = index * share; row < std::min((index + 1) * share, n.rows); row++) {
            load(n.x, row, x);
            load(n.dy, row, dy);
            row_gradient(moments[row], x, n.weight, n.length, dy);
            for (int32_t i = 0; i < n.length; i++) store_element(n.dy, row * n.length + i, run.dtype, dy[i]);
        }
        return 0;
    };
    const int64_t blocks = (n.rows + share - 1) / share;
    status = run_op(run.name, &run.execution, threads, blocks, find_moments);
    if (!status) status = weight_gradients(run, n, moments);  // of dy, before it is dx
    return status ? status : run_op(run.name, &run.execution, threads, blocks, find_rows);
}

}  // namespace heed
