// Gradients of dense layers, y = x W^T + bias, through the kernels of the forward: dx = dy (W^T)^T, dW = dy^T (x^T)^T.
#include <algorithm>
#include <cinttypes>
#include <limits>

#include "generators/contract/fields.h"
#include "runtime/backends.h"
#include "runtime/halide_bridge.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/ops/steps.h"
#include "runtime/weight_element.h"

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
    const auto turn = [&](int64_t first, int32_t count, char(&)[512]) {
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
    return run_shares(run.name, &run.execution, moved, columns, tile, turn);
}

// Packed rows as floats.
heed_status read_floats(const StepRun &run, const void *from, int64_t count, HeapArray<float> *to) {
    if (const heed_status status = to->allocate(run.name, count)) return status;
    const int64_t bytes = dtype_bytes(run.dtype);
    const auto read = [&](int64_t first, int32_t elements, char(&)[512]) {
        load_elements(static_cast<const char *>(from) + first * bytes, run.dtype, elements, to->data() + first);
        return 0;
    };
    const double moved = static_cast<double>(count) * (4 + static_cast<double>(bytes));
    return run_shares(run.name, &run.execution, moved, count, element_share, read);
}

// out [rows, w.dim_out] = x [rows, w.dim_in] W^T.
heed_status multiply(const StepRun &run, const heed_linear_weights &w, const void *x, int64_t rows, void *out,
                     bool out_is_f32 = false) {
    const auto packed = [&](int64_t width) { return View{{1, rows, 1, width}, {0, width, 0, 1}, rows * width}; };
    HeapArray<float> scratch;
    const int32_t threads = op_threads(&run.execution, std::numeric_limits<double>::infinity());
    const int64_t floats = run.backend().linear_scratch(w, rows, threads);
    if (const heed_status status = scratch.allocate(run.name, floats)) return status;
    const LinearPiece piece = {&w, 0, out, packed(w.dim_out), no_clip};
    return run.backend().linear({run.name, x, packed(w.dim_in), &piece, 1, &run.execution, out_is_f32}, scratch.data());
}

// Whether kernels write f32 sums of products of the type.
bool has_sums(heed_dtype dtype) {
    heed_linear_weights weights;
    return !find_linear_kernels(dtype, &weights) && weights.sums != nullptr && weights.sums->dtype == dtype;
}

// `to` += `from`, which is of floats or of the type of `to`.
int add_row(const OpKernel &add, const KernelBuffer &from, const KernelBuffer &to, char (&message)[512]) {
    static float zero = 0;
    const bool is_float = from.dtype == HEED_F32;
    const auto none = [&](heed_dtype dtype) { return KernelBuffer{&zero, dtype, 2, {from.extent[0], 1}, {0, 0}}; };
    AddArguments arguments;
    arguments.from = is_float ? from : none(HEED_F32);
    arguments.from_own = is_float ? none(to.dtype) : from;
    arguments.before = arguments.sum = to;
    return call_op_kernel(add, arguments, message);
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
                                        void *dweight, heed_dtype dweight_dtype) const {
    if (r.rows > INT32_MAX) {
        return fail(HEED_UNSUPPORTED, "%s: %" PRId64 " rows are beyond 2^31-1", run.name, r.rows);
    }
    const bool keeps_f32 = dweight_dtype != run.dtype;
    if (keeps_f32 && !has_sums(run.dtype)) {  // linear rounds what it writes to the type of what it reads
        HeapArray<float> wide_dy, wide_x;
        heed_status status = read_floats(run, dy, r.rows * r.dim_out, &wide_dy);
        if (!status) status = read_floats(run, x, r.rows * r.dim_in, &wide_x);
        const StepRun floats = {run.name, HEED_F32, run.execution};
        return status ? status : weight_gradient(floats, r, wide_dy.data(), wide_x.data(), dweight, HEED_F32);
    }
    const auto rows = static_cast<int32_t>(r.rows);
    HeapArray<char> columns;  // of dy
    heed_linear_weights w;
    heed_status status = columns.allocate(run.name, r.rows * r.dim_out * dtype_bytes(run.dtype));
    if (!status) status = transpose(run, dy, r.rows, r.dim_out, columns.data());
    if (status) return status;
    const WeightSource of_x = transposed(WeightSource::row_major(x, r.dim_in, rows, r.dim_in));
    status = pack_linear(run.name, {run.dtype, rows, r.dim_in, of_x, nullptr}, &w, &run.execution);
    return status ? status : multiply(run, w, columns.data(), r.dim_out, dweight, keeps_f32);
}

heed_status CpuBackend::add_column_sums(const StepRun &run, const void *dy, const ColumnRange &range, void *to,
                                        heed_dtype to_dtype) const {
    const int64_t bytes = dtype_bytes(run.dtype);
    const OpKernel *column_sums = nullptr, *add = nullptr;
    heed_status status = find_op_kernel(Op::column_sums, run.dtype, run.dtype, &column_sums);
    if (!status) status = find_op_kernel(Op::add, to_dtype, to_dtype, &add);
    if (status) return status;
    const auto add_share = [&](int64_t first, int32_t count, char(&message)[512]) {
        const char *const columns = static_cast<const char *>(dy) + (range.first + first) * bytes;
        float sums[sum_columns];
        ColumnSumsArguments arguments;
        arguments.x = {
            const_cast<char *>(columns), run.dtype, 2, {count, static_cast<int32_t>(range.rows)}, {1, range.width}};
        arguments.sums = packed_buffer(sums, HEED_F32, {count});
        if (const int code = call_op_kernel(*column_sums, arguments, message)) return code;
        char *const place = static_cast<char *>(to) + first * dtype_bytes(to_dtype);
        return add_row(*add, packed_buffer(sums, HEED_F32, {count, 1}), packed_buffer(place, to_dtype, {count, 1}),
                       message);
    };
    const auto moved = static_cast<double>(range.rows * range.count * bytes);
    return run_shares(run.name, &run.execution, moved, range.count, sum_columns, add_share);
}

heed_status CpuBackend::add_elements(const StepRun &run, const heed_tensor &from, void *to, heed_dtype to_dtype) const {
    const OpKernel *add = nullptr;
    if (const heed_status status = find_op_kernel(Op::add, to_dtype, to_dtype, &add)) return status;
    const auto add_share = [&](int64_t first, int32_t count, char(&message)[512]) {
        const auto row = [&](void *data, heed_dtype dtype) {
            return packed_buffer(static_cast<char *>(data) + first * dtype_bytes(dtype), dtype, {count, 1});
        };
        return add_row(*add, row(from.data, from.dtype), row(to, to_dtype), message);
    };
    const double moved = 3.0 * static_cast<double>(from.size * dtype_bytes(from.dtype));
    return run_shares(run.name, &run.execution, moved, from.size, element_share, add_share);
}

heed_status CpuBackend::add_matrix(const StepRun &run, const heed_tensor &from, int32_t dim_out, int32_t dim_in,
                                   const WeightSource &place, heed_dtype to_dtype) const {
    auto *const to = static_cast<char *>(const_cast<void *>(place.data));
    if (place.n_outer == 0 && place.k_outer == 0 && place.k_inner == 1 && place.n_inner == dim_in) {
        return add_elements(run, from, to, to_dtype);
    }
    const OpKernel *add = nullptr;
    if (const heed_status status = find_op_kernel(Op::add, to_dtype, to_dtype, &add)) return status;
    const int64_t run_length = std::min(place.k_block, dim_in);  // evenly spaced
    const auto block = [&](int64_t n, int32_t, char(&message)[512]) {
        for (int64_t k = 0; k < dim_in; k += run_length) {
            const auto count = static_cast<int32_t>(std::min(run_length, dim_in - k));
            char *const source = static_cast<char *>(from.data) + (n * dim_in + k) * dtype_bytes(from.dtype);
            char *const target = to + (place.row_offset(n) + place.column_offset(k)) * dtype_bytes(to_dtype);
            const KernelBuffer target_row = {target, to_dtype, 2, {count, 1}, {static_cast<int32_t>(place.k_inner), 0}};
            const int code = add_row(*add, packed_buffer(source, from.dtype, {count, 1}), target_row, message);
            if (code != 0) return code;
        }
        return 0;
    };
    const double moved = 3.0 * static_cast<double>(from.size * dtype_bytes(from.dtype));
    return run_op(run.name, &run.execution, op_threads(&run.execution, moved), dim_out, block);
}

}  // namespace heed
