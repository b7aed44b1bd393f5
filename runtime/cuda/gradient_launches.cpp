#include "cuda/gradient_launches.h"

#include <algorithm>
#include <cinttypes>

#include "cuda/op_session.h"
#include "status.h"
#include "view.h"

namespace heed::cuda {
namespace {

constexpr int64_t slice_rows = 128;  // of sums over columns

template <typename Arguments>
heed_status launch(const heed_execution &execution, Op op, heed_dtype dtype, const Arguments &arguments) {
    OpSession session;
    const heed_status status = session.open(execution, op, dtype, dtype);
    if (status) return status;
    return launch_op(session.row(), arguments, session.launches());
}

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

}  // namespace

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

heed_status launch_copy_rows(const heed_execution &execution, heed_dtype dtype, const MatrixMove &m,
                             const RowPadding &padding) {
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

heed_status launch_add(const heed_execution &execution, const MatrixSum &s) {
    if (const heed_status status = check_blocks(s.rows, s.columns, 1, 256)) return status;
    const heed_dtype dtype = s.from_dtype == HEED_F32 ? s.to_dtype : s.from_dtype;
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
    return launch(execution, Op::add, dtype, arguments);
}

int64_t column_sums_scratch(int64_t rows, int64_t columns) {
    return rows <= slice_rows ? 0 : (rows + slice_rows - 1) / slice_rows * columns;
}

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

heed_status launch_clip_gradient(const heed_execution &execution, heed_dtype dtype, const void *x, void *gradient,
                                 int64_t elements, float limit) {
    const int64_t bytes = dtype_bytes(dtype), most = max_count - 16;  // a multiple of 16 bytes
    heed_status status = HEED_OK;
    for (int64_t first = 0; first < elements && !status; first += most) {
        const int64_t count = std::min(elements - first, most);
        const char *const from = static_cast<const char *>(x) + first * bytes;
        char *const to = static_cast<char *>(gradient) + first * bytes;
        ClipGradientArguments arguments;
        arguments.count = narrow(count);
        arguments.wide = (address_of(from) | address_of(to) | word(count * bytes)) % 16 == 0;
        arguments.limit = limit;
        arguments.x_first = address_of(from);
        arguments.gradient_first = address_of(to);
        arguments.named = named(to);
        status = launch(execution, Op::clip_gradient, dtype, arguments);
    }
    return status;
}

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

}  // namespace heed::cuda
