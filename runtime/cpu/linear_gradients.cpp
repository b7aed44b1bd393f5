// Gradients of dense layers, y = x W^T + bias, through the kernels of the forward: dx = dy (W^T)^T, dW = dy^T (x^T)^T.
#include <algorithm>
#include <array>
#include <cinttypes>

#include "cpu/cpu_backend.h"
#include "ops/steps.h"
#include "weight_element.h"

namespace heed {
namespace {

constexpr int64_t tile = 32;  // of a transposition: its lines of either side stay in the L1 cache

template <typename T>
void transpose_tile(const T *from, int64_t from_stride, T *to, int64_t to_stride, int64_t rows, int64_t columns) {
    for (int64_t column = 0; column < columns; column++) {
        for (int64_t row = 0; row < rows; row++) to[column * to_stride + row] = from[row * from_stride + column];
    }
}

// to [columns, rows] of from [rows, columns].
heed_status transpose(const StepRun &run, const void *from, int64_t rows, int64_t columns, void *to) {
    const auto block = [&](int64_t index, int32_t, char(&)[512]) {
        const int64_t first = index * tile, count = std::min(tile, columns - first);
        const auto run_tiles = [&](auto *source, auto *target) {
            for (int64_t row = 0; row < rows; row += tile) {
                transpose_tile(source + row * columns + first, columns, target + first * rows + row, rows,
                               std::min(tile, rows - row), count);
            }
        };
        if (run.dtype == HEED_F32) run_tiles(static_cast<const float *>(from), static_cast<float *>(to));
        if (run.dtype != HEED_F32) run_tiles(static_cast<const uint16_t *>(from), static_cast<uint16_t *>(to));
        return 0;
    };
    const double moved = 2.0 * static_cast<double>(rows * columns * dtype_bytes(run.dtype));
    return run_op(run.name, &run.execution, op_threads(&run.execution, moved), (columns + tile - 1) / tile, block);
}

// out [rows, w.dim_out] = x [rows, w.dim_in] W^T.
heed_status multiply(const StepRun &run, const heed_linear_weights &w, const void *x, int64_t rows, void *out) {
    const auto packed = [&](int64_t width) { return View{{1, rows, 1, width}, {0, width, 0, 1}, rows * width}; };
    HeapArray<float> scratch;
    if (const heed_status status = scratch.allocate(run.name, run.backend().linear_scratch(w, rows))) return status;
    const LinearPiece piece = {&w, 0, out, packed(w.dim_out), no_clip};
    return run.backend().linear({run.name, x, packed(w.dim_in), &piece, 1, &run.execution}, scratch.data());
}

}  // namespace

int64_t CpuBackend::linear_gradient_scratch(const LinearRows &) const { return 0; }

int64_t CpuBackend::column_sums_scratch(int64_t, int64_t) const { return 0; }

heed_status CpuBackend::input_gradient(const StepRun &run, const LinearRows &r, const void *dy,
                                       const WeightSource &weight, void *dx) const {
    heed_linear_weights w;
    const heed_status status =
        pack_linear(run.name, {run.dtype, r.dim_out, r.dim_in, transposed(weight), nullptr}, &w, &run.execution);
    return status ? status : multiply(run, w, dy, r.rows, dx);
}

heed_status CpuBackend::weight_gradient(const StepRun &run, const LinearRows &r, const void *dy, const void *x,
                                        void *dweight) const {
    if (r.rows > INT32_MAX) {
        return fail(HEED_UNSUPPORTED, "%s: %" PRId64 " rows are beyond 2^31-1", run.name, r.rows);
    }
    const auto rows = static_cast<int32_t>(r.rows);
    HeapArray<char> columns;  // of dy
    heed_linear_weights w;
    heed_status status = columns.allocate(run.name, r.rows * r.dim_out * dtype_bytes(run.dtype));
    if (!status) status = transpose(run, dy, r.rows, r.dim_out, columns.data());
    if (status) return status;
    const WeightSource of_x = transposed(WeightSource::row_major(x, r.dim_in, rows, r.dim_in));
    status = pack_linear(run.name, {run.dtype, rows, r.dim_in, of_x, nullptr}, &w, &run.execution);
    return status ? status : multiply(run, w, columns.data(), r.dim_out, dweight);
}

heed_status CpuBackend::add_column_sums(const StepRun &run, const void *dy, const ColumnRange &range, void *to,
                                        heed_dtype to_dtype) const {
    constexpr int64_t share = 64;
    const int64_t bytes = dtype_bytes(run.dtype);
    const auto block = [&](int64_t index, int32_t, char(&)[512]) {
        const int64_t first = index * share, count = std::min(share, range.count - first);
        std::array<double, share> sums = {};
        std::array<float, share> values;
        for (int64_t row = 0; row < range.rows; row++) {
            const int64_t at = row * range.width + range.first + first;
            load_elements(static_cast<const char *>(dy) + at * bytes, run.dtype, count, values.data());
            for (size_t n = 0; n < static_cast<size_t>(count); n++) sums[n] += static_cast<double>(values[n]);
        }
        for (int64_t n = 0; n < count; n++) {
            const float sum = load_element(to, first + n, to_dtype) + static_cast<float>(sums[static_cast<size_t>(n)]);
            store_element(to, first + n, to_dtype, sum);
        }
        return 0;
    };
    const auto moved = static_cast<double>(range.rows * range.count * bytes);
    return run_op(run.name, &run.execution, op_threads(&run.execution, moved), (range.count + share - 1) / share,
                  block);
}

heed_status CpuBackend::add_elements(const StepRun &run, const void *from, int64_t count, void *to,
                                     heed_dtype to_dtype) const {
    constexpr int64_t share = 1 << 14;
    const auto block = [&](int64_t index, int32_t, char(&)[512]) {
        const int64_t end = std::min((index + 1) * share, count);
        if (run.dtype == HEED_F32 && to_dtype == HEED_F32) {
            const auto *const source = static_cast<const float *>(from);
            auto *const target = static_cast<float *>(to);
            for (int64_t i = index * share; i < end; i++) target[i] += source[i];
            return 0;
        }
        for (int64_t i = index * share; i < end; i++) {
            store_element(to, i, to_dtype, load_element(to, i, to_dtype) + load_element(from, i, run.dtype));
        }
        return 0;
    };
    const double moved = 3.0 * static_cast<double>(count * dtype_bytes(run.dtype));
    return run_op(run.name, &run.execution, op_threads(&run.execution, moved), (count + share - 1) / share, block);
}

heed_status CpuBackend::add_matrix(const StepRun &run, const void *from, int32_t dim_out, int32_t dim_in,
                                   const WeightSource &place, heed_dtype to_dtype) const {
    auto *const to = static_cast<char *>(const_cast<void *>(place.data));
    if (place.n_outer == 0 && place.k_outer == 0 && place.k_inner == 1 && place.n_inner == dim_in) {
        return add_elements(run, from, int64_t{dim_out} * dim_in, to, to_dtype);
    }
    const auto block = [&](int64_t n, int32_t, char(&)[512]) {
        for (int64_t k = 0; k < dim_in; k++) {
            const int64_t at = place.row_offset(n) + place.column_offset(k);
            store_element(to, at, to_dtype,
                          load_element(to, at, to_dtype) + load_element(from, n * dim_in + k, run.dtype));
        }
        return 0;
    };
    const double moved = 3.0 * static_cast<double>(int64_t{dim_out} * dim_in * dtype_bytes(run.dtype));
    return run_op(run.name, &run.execution, op_threads(&run.execution, moved), dim_out, block);
}

}  // namespace heed
