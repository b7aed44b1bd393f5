// Gradients of layer norm: what kernels are called with, and in which order.
#include <algorithm>

#include "generators/contract/fields.h"
#include "runtime/backends.h"
#include "runtime/halide_bridge.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/ops/steps.h"

namespace heed {
namespace {

constexpr int32_t norm_share = 8;  // rows of a task: they stay in the L1 cache

class NormSteps {
public:
    NormSteps(const StepRun &run, const NormGradient &norm, const OpKernel &rows, const OpKernel &sums, float *moments)
        : run_(run), norm_(norm), rows_(rows), sums_(sums), moments_(moments) {}

    // Mean and factor of each row, or dx.
    heed_status run_rows(bool gives_dx) const {
        const auto rows = [&](int64_t first, int32_t count, char(&message)[512]) {
            float means[norm_share], means_of_n[norm_share];
            LayerNormGradientArguments arguments;
            arguments.x = rows_at(const_cast<void *>(norm_.x), first, 0, norm_.length, count);
            arguments.dy = rows_at(norm_.dy, first, 0, norm_.length, count);
            arguments.weight = numbers(norm_.weight, norm_.length);
            arguments.epsilon = norm_.epsilon;
            arguments.mean = numbers(mean() + first, count);
            arguments.factor = numbers(factor() + first, count);
            arguments.mean_g = numbers(means, gives_dx ? count : 0);
            arguments.mean_gn = numbers(means_of_n, gives_dx ? count : 0);
            arguments.dx = rows_at(norm_.dy, first, 0, norm_.length, gives_dx ? count : 0);
            return call_op_kernel(rows_, arguments, message);
        };
        return run_shares(run_.name, &run_.execution, moved(), norm_.rows, norm_share, rows);
    }

    heed_status run_sums() const {
        const auto sums = [&](int64_t first, int32_t count, char(&message)[512]) {
            const int32_t rows = narrow(norm_.rows);
            LayerNormSumsArguments arguments;
            arguments.x = rows_at(const_cast<void *>(norm_.x), 0, first, count, rows);
            arguments.dy = rows_at(norm_.dy, 0, first, count, rows);
            arguments.mean = numbers(mean(), rows);
            arguments.factor = numbers(factor(), rows);
            arguments.dweight = numbers(norm_.sums.dweight + first, count);
            arguments.dbias = numbers(norm_.sums.dbias + first, count);
            return call_op_kernel(sums_, arguments, message);
        };
        return run_shares(run_.name, &run_.execution, moved(), norm_.length, sum_columns, sums);
    }

private:
    const StepRun &run_;
    const NormGradient &norm_;
    const OpKernel &rows_, &sums_;
    float *const moments_;

    double moved() const { return 3.0 * static_cast<double>(norm_.rows * norm_.length * dtype_bytes(run_.dtype)); }
    float *mean() const { return moments_; }
    float *factor() const { return moments_ + norm_.rows; }

    static KernelBuffer numbers(const float *data, int32_t count) { return packed_buffer(data, HEED_F32, {count}); }
    KernelBuffer rows_at(void *data, int64_t row, int64_t column, int32_t columns, int32_t rows) const {
        const int64_t first = (row * norm_.length + column) * dtype_bytes(run_.dtype);
        return {static_cast<char *>(data) + first, run_.dtype, 2, {columns, rows}, {1, norm_.length}};
    }
};

}  // namespace

heed_status CpuBackend::norm_gradients(const StepRun &run, const NormGradient &n) const {
    const OpKernel *rows = nullptr, *sums = nullptr;
    heed_status status = find_op_kernel(Op::layer_norm_gradient, run.dtype, run.dtype, &rows);
    if (!status) status = find_op_kernel(Op::layer_norm_sums, run.dtype, run.dtype, &sums);
    HeapArray<float> moments;
    if (!status) status = moments.allocate(run.name, 2 * n.rows);
    if (status) return status;
    const NormSteps steps(run, n, *rows, *sums, moments.data());
    status = steps.run_rows(false);
    if (!status) status = steps.run_sums();  // of dy, before it is dx
    return status ? status : steps.run_rows(true);
}

}  // namespace heed
