// Gradients of dense layers and of whole layers on CUDA: launches on the execution's stream. Scratch is memory of the
// device; weights are row-major; strides of rows are in elements.
#include <algorithm>
#include <cinttypes>

#include "runtime/backends.h"
#include "runtime/cuda/op_session.h"
#include "runtime/ops/steps.h"
#include "runtime/status.h"
#include "runtime/view.h"

namespace heed {
namespace cuda {
namespace {

constexpr int64_t slice_rows = 128;  // of sums over columns

// Blocks of rows_per_block x columns_per_block.
heed_status check_blocks(int64_t rows, int64_t columns, int64_t rows_per_block, int64_t columns_per_block) {
    const int64_t down = (rows + rows_per_block - 1) / rows_per_block,
                  across = (columns + columns_per_block - 1) / columns_per_block;
    if (rows <= max_count && columns <= max_count && down * across <= INT32_MAX) return HEED_OK;
    return fail(HEED_UNSUPPORTED,
                "a gradient is a matrix of %" PRId64 " rows and %" PRId64 " columns; CUDA serves 2^30 "
                "of each, and 2^31 blocks of %" PRId64 " x %" PRId64,
                rows, columns, rows_per_block, columns_per_block);
}

uint64_t word(int64_t x) { return static_cast<uint64_t>(x); }

// to [columns, to_columns], zeros from column `rows` of it on.
heed_status launch_transpose(const heed_execution &execution, heed_dtype dtype, const MatrixMove &m,
                             int64_t to_columns) {
    if (const heed_status status = check_blocks(to_columns, m.columns, 32, 32)) return status;
    const int64_t bytes = dtype_bytes(dtype);
    TransposeArguments arguments;
    arguments.rows = narrow(m.rows);
    arguments.columns = narrow(m.columns);
    arguments.to_columns = narrow(to_columns);
    arguments.from_stride = word(m.from_stride * bytes);
    arguments.to_stride = word(m.to_stride * bytes);
    arguments.from_first = address_of(m.from);
    arguments.to_first = address_of(m.to);
    arguments.named = named(m.to);
    return launch(execution, Op::transpose, dtype, arguments);
}

// A key padding of the rows: uint8 [rows], or NULL.
struct RowPadding {
    const void *bytes = nullptr;
    bool true_hides = false;
};

// Rows, with zeros for those that the padding hides.
heed_status launch_copy_rows(const heed_execution &execution, heed_dtype dtype, const MatrixMove &m,
                             const RowPadding &padding = {}) {
    if (const heed_status status = check_blocks(m.rows, m.columns, 8, m.columns)) return status;
    const int64_t bytes = dtype_bytes(dtype);
    const uint64_t from_stride = word(m.from_stride * bytes), to_stride = word(m.to_stride * bytes);
    const uint64_t all = from_stride | to_stride | word(m.columns * bytes) | address_of(m.from) | address_of(m.to);
    CopyRowsArguments arguments;
    arguments.rows = narrow(m.rows);
    arguments.columns = narrow(m.columns);
    arguments.wide = all % 16 == 0;
    arguments.true_hides = padding.true_hides;
    arguments.from_stride = from_stride;
    arguments.to_stride = to_stride;
    arguments.from_first = address_of(m.from);
    arguments.to_first = address_of(m.to);
    arguments.padding_first = address_of(padding.bytes);
    arguments.named = named(m.to);
    return launch(execution, Op::copy_rows, dtype, arguments);
}

// place.data += from, where elements of `to_dtype` are placed as `place` says, those of `from` alike, or packed. Both
// types are that of the kernel, or f32.
struct MatrixSum {
    heed_dtype kernel;
    const void *from;
    heed_dtype from_dtype;
    WeightSource place;
    heed_dtype to_dtype;
    int64_t rows, columns;
    bool from_placed = false;
};
heed_status launch_add(const heed_execution &execution, const MatrixSum &s) {
    if (const heed_status status = check_blocks(s.rows, s.columns, 1, 256)) return status;
    const WeightSource &place = s.place;
    void *const to = const_cast<void *>(place.data);
    AddArguments arguments;
    arguments.rows = narrow(s.rows);
    arguments.columns = narrow(s.columns);
    arguments.row_block = place.n_block;
    arguments.column_block = place.k_block;
    arguments.from_placed = s.from_placed;
    arguments.from_is_f32 = s.from_dtype == HEED_F32;
    arguments.to_is_f32 = s.to_dtype == HEED_F32;
    arguments.row_outer = word(place.n_outer);
    arguments.row_inner = word(place.n_inner);
    arguments.column_outer = word(place.k_outer);
    arguments.column_inner = word(place.k_inner);
    arguments.from_first = address_of(s.from);
    arguments.to_first = address_of(to);
    arguments.named = named(to);
    return launch(execution, Op::add, s.kernel, arguments);
}

// to [columns] of to_dtype: sums over rows, on top of what is there or not. Types as above.
struct ColumnSums {
    const void *from;
    heed_dtype from_dtype;
    int64_t from_stride, rows, columns;
    void *to;
    heed_dtype to_dtype;
    bool adds;
    float *scratch;  // column_sums_scratch() floats
};
heed_status launch_column_sums(const heed_execution &execution, const ColumnSums &sums) {
    ColumnSums s = sums;
    const auto sum_slices = [&](int64_t rows_of_slice) {
        if (const heed_status status = check_blocks(s.rows, s.columns, rows_of_slice, 32)) return status;
        const heed_dtype dtype = s.from_dtype == HEED_F32 ? s.to_dtype : s.from_dtype;
        ColumnSumsArguments arguments;
        arguments.rows = narrow(s.rows);
        arguments.columns = narrow(s.columns);
        arguments.slice_rows = narrow(rows_of_slice);
        arguments.adds = s.adds;
        arguments.from_is_f32 = s.from_dtype == HEED_F32;
        arguments.to_is_f32 = s.to_dtype == HEED_F32;
        arguments.from_stride = word(s.from_stride);
        arguments.from_first = address_of(s.from);
        arguments.to_first = address_of(s.to);
        arguments.named = named(s.to);
        return launch(execution, Op::column_sums, dtype, arguments);
    };
    if (s.rows > slice_rows) {
        s.to = s.scratch;
        s.to_dtype = HEED_F32;
        s.adds = false;
        if (const heed_status status = sum_slices(slice_rows)) return status;
        s = sums;
        s.from = s.scratch;
        s.from_dtype = HEED_F32;
        s.from_stride = s.columns;
        s.rows = (sums.rows + slice_rows - 1) / slice_rows;
    }
    return sum_slices(s.rows);
}

// dy becomes dx, products [rows, length] are dy times the normalised x.
heed_status launch_norm_gradient(const heed_execution &execution, heed_dtype dtype, const NormGradient &n) {
    if (const heed_status status = check_blocks(n.rows, n.length, 8, n.length)) return status;
    const uint64_t row_bytes = word(int64_t{n.length} * dtype_bytes(dtype));
    LayerNormGradientArguments arguments;
    arguments.rows = narrow(n.rows);
    arguments.length = n.length;
    arguments.wide = (address_of(n.x) | address_of(n.dy) | row_bytes) % 16 == 0;
    arguments.epsilon = n.epsilon;
    arguments.x_first = address_of(n.x);
    arguments.weight_first = address_of(n.weight);
    arguments.dy_first = address_of(n.dy);
    arguments.products_first = address_of(n.products);
    arguments.named = named(n.dy);
    return launch(execution, Op::layer_norm_gradient, dtype, arguments);
}

}  // namespace
}  // namespace cuda

namespace {

// out [rows, columns] = x [rows, depth] y^T, y [columns, depth].
heed_status multiply(const StepRun &run, const void *x, const void *y, void *out, int64_t rows, int64_t columns,
                     int64_t depth, bool out_is_f32 = false) {
    const auto dim_in = static_cast<int32_t>(depth), dim_out = static_cast<int32_t>(columns);
    heed_linear_weights w;
    refer_to({run.dtype, dim_in, dim_out, WeightSource::row_major(y, dim_in, dim_out, depth), nullptr}, &w);
    const auto packed = [&](int64_t width) { return View{{1, rows, 1, width}, {0, width, 0, 1}, rows * width}; };
    const LinearPiece piece = {&w, 0, out, packed(columns), no_clip};
    return run.backend().linear({run.name, x, packed(depth), &piece, 1, &run.execution, out_is_f32}, nullptr);
}

// Rows on which tensor cores multiply: whole chunks of 16 bytes.
int64_t whole_chunks(int64_t rows) { return round_up(rows, 8); }

}  // namespace

int64_t CudaBackend::linear_gradient_scratch(const LinearRows &r) const {
    const int64_t turned_weight = int64_t{r.dim_in} * r.dim_out,
                  turned_rows = whole_chunks(r.rows) * (int64_t{r.dim_in} + r.dim_out);
    return std::max(turned_weight, turned_rows);
}

heed_status CudaBackend::input_gradient(const StepRun &run, const LinearRows &r, const void *dy,
                                        const WeightSource &weight, void *dx) const {
    const MatrixMove turn = {weight.data, weight.n_inner, run.scratch, r.dim_out, r.dim_out, r.dim_in};
    const heed_status status = cuda::launch_transpose(run.execution, run.dtype, turn, r.dim_out);
    return status ? status : multiply(run, dy, run.scratch, dx, r.rows, r.dim_in, r.dim_out);
}

heed_status CudaBackend::weight_gradient(const StepRun &run, const LinearRows &r, const void *dy, const void *x,
                                         void *dweight, heed_dtype dweight_dtype) const {
    const int64_t depth = whole_chunks(r.rows);
    char *const columns_of_dy = static_cast<char *>(run.scratch), *const columns_of_x =
                                                                      columns_of_dy +
                                                                      depth * r.dim_out * dtype_bytes(run.dtype);
    heed_status status = cuda::launch_transpose(run.execution, run.dtype,
                                                {dy, r.dim_out, columns_of_dy, depth, r.rows, r.dim_out}, depth);
    if (!status) {
        status = cuda::launch_transpose(run.execution, run.dtype, {x, r.dim_in, columns_of_x, depth, r.rows, r.dim_in},
                                        depth);
    }
    return status ? status
                  : multiply(run, columns_of_dy, columns_of_x, dweight, r.dim_out, r.dim_in, depth,
                             dweight_dtype == HEED_F32);
}

// Lines of as many elements as a launch likes.
heed_status CudaBackend::add_elements(const StepRun &run, const heed_tensor &from, void *to,
                                      heed_dtype to_dtype) const {
    return cuda::launch_pieces(from.size, [&](int64_t first, int32_t count) {
        const WeightSource place =
            WeightSource::row_major(static_cast<char *>(to) + first * dtype_bytes(to_dtype), count, 1, count);
        const char *const rest = static_cast<const char *>(from.data) + first * dtype_bytes(from.dtype);
        return cuda::launch_add(run.execution, {run.dtype, rest, from.dtype, place, to_dtype, 1, count});
    });
}

heed_status CudaBackend::add_matrix(const StepRun &run, const heed_tensor &from, int32_t dim_out, int32_t dim_in,
                                    const WeightSource &place, heed_dtype to_dtype) const {
    return cuda::launch_add(run.execution, {run.dtype, from.data, from.dtype, place, to_dtype, dim_out, dim_in});
}

int64_t CudaBackend::column_sums_scratch(int64_t rows, int64_t columns) const {
    return rows <= cuda::slice_rows ? 0 : (rows + cuda::slice_rows - 1) / cuda::slice_rows * columns;
}

heed_status CudaBackend::add_column_sums(const StepRun &run, const void *dy, const ColumnRange &range, void *to,
                                         heed_dtype to_dtype) const {
    const char *const from = static_cast<const char *>(dy) + range.first * dtype_bytes(run.dtype);
    return cuda::launch_column_sums(run.execution, {from, run.dtype, range.width, range.rows, range.count, to, to_dtype,
                                                    true, static_cast<float *>(run.scratch)});
}

heed_status CudaBackend::norm_gradients(const StepRun &run, const NormGradient &n) const {
    auto *const scratch = static_cast<float *>(run.scratch);
    const auto sum = [&](const void *from, heed_dtype dtype, float *to) {
        return cuda::launch_column_sums(run.execution,
                                        {from, dtype, n.length, n.rows, n.length, to, HEED_F32, false, scratch});
    };
    heed_status status = sum(n.dy, run.dtype, n.sums.dbias);  // before dy is dx
    if (!status) status = cuda::launch_norm_gradient(run.execution, run.dtype, n);
    return status ? status : sum(n.products, HEED_F32, n.sums.dweight);
}

heed_status CudaBackend::clip_gradient(const StepRun &run, const void *x, int64_t elements, float limit,
                                       void *gradient) const {
    const int64_t bytes = dtype_bytes(run.dtype);
    return cuda::launch_pieces(elements, [&](int64_t first, int32_t count) {
        const char *const from = static_cast<const char *>(x) + first * bytes;
        char *const to = static_cast<char *>(gradient) + first * bytes;
        cuda::ClipGradientArguments arguments;
        arguments.count = count;
        arguments.wide = (cuda::address_of(from) | cuda::address_of(to) | cuda::word(count * bytes)) % 16 == 0;
        arguments.limit = limit;
        arguments.x_first = cuda::address_of(from);
        arguments.gradient_first = cuda::address_of(to);
        arguments.named = cuda::named(to);
        return cuda::launch(run.execution, Op::clip_gradient, run.dtype, arguments);
    });
}

heed_status CudaBackend::copy_rows(const StepRun &run, const MatrixMove &move) const {
    return move.rows == 0 ? HEED_OK : cuda::launch_copy_rows(run.execution, run.dtype, move);
}

heed_status CudaBackend::copy_visible(const StepRun &run, const HiddenRows &s, char *to) const {
    const int64_t bytes = s.columns * dtype_bytes(run.dtype);
    heed_status status = cuda::launch_copy_rows(run.execution, run.dtype,
                                                {s.data, s.columns, to, s.columns, int64_t{s.batch} * s.len, s.columns},
                                                {s.padding, s.true_hides});
    for (int64_t n = 0; n < s.batch && !status; n++) {
        const int64_t hidden = s.len - s.lens[n];
        if (hidden > 0) status = clear(run.execution, to + (n * s.len + s.lens[n]) * bytes, hidden * bytes);
    }
    return status;
}

heed_status CudaBackend::copy_weight(const StepRun &run, const heed_linear_weights &w, char *to) const {
    return copy_rows(run, {w.device_weight, w.row_stride, to, w.dim_in, w.dim_out, w.dim_in});
}

heed_status CudaBackend::add_view(const StepRun &run, const void *from, const View &view, void *to) const {
    const int64_t *const extent = view.extent, *const stride = view.stride;
    const WeightSource place = {
        to,       static_cast<int32_t>(extent[1]), static_cast<int32_t>(extent[3]), stride[0], stride[1], stride[2],
        stride[3]};
    return cuda::launch_add(run.execution, {run.dtype, from, run.dtype, place, run.dtype, extent[0] * extent[1],
                                            extent[2] * extent[3], true});
}

}  // namespace heed
