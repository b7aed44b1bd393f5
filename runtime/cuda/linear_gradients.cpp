// Gradients of dense layers on CUDA. Scratch is memory of the device; weights are row-major.
#include <algorithm>

#include "cuda/cuda_backend.h"
#include "cuda/gradient_launches.h"

namespace heed {
namespace {

// out [rows, columns] = x [rows, depth] y^T, y [columns, depth].
heed_status multiply(const StepRun &run, const void *x, const void *y, void *out, int64_t rows, int64_t columns,
                     int64_t depth) {
    heed_linear_weights w;
    w.dtype = run.dtype;
    w.device = HEED_CUDA;
    w.device_weight = y;
    w.dim_in = static_cast<int32_t>(depth);
    w.dim_out = static_cast<int32_t>(columns);
    w.row_stride = depth;
    const auto packed = [&](int64_t width) { return View{{1, rows, 1, width}, {0, width, 0, 1}, rows * width}; };
    const LinearPiece piece = {&w, 0, out, packed(columns), no_clip};
    return run.backend().linear({run.name, x, packed(depth), &piece, 1, &run.execution}, nullptr);
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
                                         void *dweight) const {
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
    return status ? status : multiply(run, columns_of_dy, columns_of_x, dweight, r.dim_out, r.dim_in, depth);
}

// Lines of as many elements as a launch likes.
heed_status CudaBackend::add_elements(const StepRun &run, const void *from, int64_t count, void *to,
                                      heed_dtype to_dtype) const {
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

heed_status CudaBackend::add_matrix(const StepRun &run, const void *from, int32_t dim_out, int32_t dim_in,
                                    const WeightSource &place, heed_dtype to_dtype) const {
    return cuda::launch_add(run.execution, {from, run.dtype, place, to_dtype, dim_out, dim_in});
}

int64_t CudaBackend::column_sums_scratch(int64_t rows, int64_t columns) const {
    return cuda::column_sums_scratch(rows, columns);
}

heed_status CudaBackend::add_column_sums(const StepRun &run, const void *dy, const ColumnRange &range, void *to,
                                         heed_dtype to_dtype) const {
    const char *const from = static_cast<const char *>(dy) + range.first * dtype_bytes(run.dtype);
    return cuda::launch_column_sums(run.execution, {from, run.dtype, range.width, range.rows, range.count, to, to_dtype,
                                                    true, static_cast<float *>(run.scratch)});
}

}  // namespace heed
