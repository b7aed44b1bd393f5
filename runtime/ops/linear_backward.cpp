#include "ops/linear_backward.h"

#include <algorithm>
#include <array>
#include <cinttypes>

#include "cuda/gradient_launches.h"
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
heed_status transpose(const GradientRun &run, const void *from, int64_t rows, int64_t columns, void *to) {
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
heed_status multiply(const GradientRun &run, const heed_linear_weights &w, const void *x, int64_t rows, void *out) {
    const auto packed = [&](int64_t width) { return View{{1, rows, 1, width}, {0, width, 0, 1}, rows * width}; };
    HeapArray<float> scratch;
    if (const heed_status status = scratch.allocate(run.name, linear_scratch(w, rows))) return status;
    const LinearPiece piece = {&w, 0, out, packed(w.dim_out), no_clip};
    return run_linear({run.name, x, packed(w.dim_in), &piece, 1, &run.execution}, scratch.data());
}

// Lines of as many elements as a launch likes.
heed_status add_on_cuda(const GradientRun &run, const void *from, int64_t count, void *to, heed_dtype to_dtype) {
    constexpr int64_t most = int64_t{1} << 30;
    heed_status status = HEED_OK;
    for (int64_t first = 0; first < count && !status; first += most) {
        const int64_t columns = std::min(most, count - first);
        const auto width = static_cast<int32_t>(columns);
        const WeightSource place =
            WeightSource::row_major(static_cast<char *>(to) + first * dtype_bytes(to_dtype), width, 1, width);
        status = cuda::launch_add(run.execution, {static_cast<const char *>(from) + first * dtype_bytes(run.dtype),
                                                  run.dtype, place, to_dtype, 1, columns});
    }
    return status;
}

}  // namespace

WeightSource transposed(const WeightSource &w) {
    return {w.data, w.k_block, w.n_block, w.k_outer, w.k_inner, w.n_outer, w.n_inner};
}

WeightSource unpacked(const heed_linear_weights &w) {
    if (w.device == HEED_CUDA) return WeightSource::row_major(w.device_weight, w.dim_in, w.dim_out, w.row_stride);
    const int64_t step = int64_t{w.columns} * w.k_step;
    return {w.panels.data(), w.columns, w.k_step, w.k_steps * step, w.k_step, step, 1};
}

heed_status linear_input_gradient(const GradientRun &run, const LinearRows &r, const void *dy,
                                  const WeightSource &weight, void *dx) {
    if (run.on_cuda()) return cuda::launch_input_gradient(run, r, dy, weight, dx);
    heed_linear_weights w;
    const heed_status status =
        pack_linear(run.name, run.dtype, r.dim_out, r.dim_in, transposed(weight), nullptr, &w, &run.execution);
    return status ? status : multiply(run, w, dy, r.rows, dx);
}

heed_status linear_weight_gradient(const GradientRun &run, const LinearRows &r, const void *dy, const void *x,
                                   void *dweight) {
    if (run.on_cuda()) return cuda::launch_weight_gradient(run, r, dy, x, dweight);
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
    status = pack_linear(run.name, run.dtype, rows, r.dim_in, of_x, nullptr, &w, &run.execution);
    return status ? status : multiply(run, w, columns.data(), r.dim_out, dweight);
}

heed_status add_column_sums(const GradientRun &run, const void *dy, const ColumnRange &range, void *to,
                            heed_dtype to_dtype) {
    constexpr int64_t share = 64;
    const int64_t bytes = dtype_bytes(run.dtype);
    if (run.on_cuda()) {
        const char *const from = static_cast<const char *>(dy) + range.first * bytes;
        return cuda::launch_column_sums(run.execution, {from, run.dtype, range.width, range.rows, range.count, to,
                                                        to_dtype, true, static_cast<float *>(run.scratch)});
    }
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

heed_status add_elements(const GradientRun &run, const void *from, int64_t count, void *to, heed_dtype to_dtype) {
    constexpr int64_t share = 1 << 14;
    if (run.on_cuda()) return add_on_cuda(run, from, count, to, to_dtype);
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

heed_status add_matrix(const GradientRun &run, const void *from, int32_t dim_out, int32_t dim_in,
                       const WeightSource &place, heed_dtype to_dtype) {
    auto *const to = static_cast<char *>(const_cast<void *>(place.data));
    if (run.on_cuda()) return cuda::launch_add(run.execution, {from, run.dtype, place, to_dtype, dim_out, dim_in});
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
