#include "runtime/cpu/linear_in_place.h"

#include <algorithm>

#include "runtime/cpu/linear_blocks.h"
#include "runtime/cpu/linear_runs.h"
#include "runtime/ops/op_run.h"

namespace heed {
namespace {

// Packing a tile of x costs what products with 5 columns do, and reads of a panel from L2 are free then.
constexpr int64_t most_columns_in_place = 256;
// Each tile reads all of W, which has at most so many bytes: 1000 x 4096 x 64 takes 0.7 of the time in place (6 rows,
// Zen 3).
constexpr int64_t most_bytes_in_place = 1 << 20;
// Rows at multiples of this share the lines of a set of the L1 cache, as many as it has ways.
constexpr int64_t alias_bytes = 4096;
constexpr int32_t l1_ways = 8;
// Enough tasks that no thread waits long for the last one, and each some 10 us long.
constexpr int64_t tasks_per_thread = 14;
constexpr double task_flops = 2 << 20;

int64_t num_rows(const LinearCall &call) { return call.view.extent[0] * call.view.extent[1]; }

template <typename Function>
void for_each_run(const LinearCall &call, const Function &function) {
    int32_t count = 0;
    for (int32_t i = 0; i < call.num_pieces; i++) count += num_runs(call.pieces[i]);
    for (int32_t i = 0; i < count; i++) function(run_at(call, i));
}

// Columns of whole panels; a half panel has the others.
int32_t wide_columns(const InPlaceKernels &kernels, int32_t columns) {
    const int32_t rest = columns % kernels.wide->columns;
    return kernels.narrow != nullptr && rest <= kernels.narrow->columns ? columns - rest : columns;
}

InPlaceKernels kernels_for(const LinearCall &call) {
    const heed_linear_weights &w = *call.pieces[0].weights;
    return serving(w.in_place, row_stride(call.view) * dtype_bytes(w.dtype), out_dtype(call));
}

int multiply_rows(const LinearCall &call, const ColumnRun &run, int64_t row, int64_t count, char (&message)[512]) {
    const heed_linear_weights &w = *run.piece->weights;
    const View &view = run.piece->view;
    const int32_t column = first_column(run), panels = num_panels(run);
    const int64_t bytes = dtype_bytes(w.dtype);
    const char *const x = static_cast<const char *>(call.x) + row * row_stride(call.view) * bytes;
    char *const out =
        static_cast<char *>(run.piece->out) + (row * row_stride(view) + run.head * view.stride[2]) * bytes;
    LinearInPlaceArguments arguments;
    arguments.x = {const_cast<char *>(x), w.dtype, 2, {w.dim_in, narrow(count)}, {1, narrow(row_stride(call.view))}};
    arguments.weight = panels_from(w, column, 0, w.k_steps, panels);
    arguments.bias = packed_buffer(w.bias.data() + column, HEED_F32, {panels * w.columns});
    arguments.clip = run.piece->clip;
    arguments.out = {out, w.dtype, 2, {run.num_columns, narrow(count)}, {1, narrow(row_stride(view))}};
    return multiply_in_place(kernels_for(call), arguments, message);
}

}  // namespace

InPlaceKernels serving(InPlaceKernels kernels, int64_t row_bytes, heed_dtype out) {
    const bool aliases = row_bytes % alias_bytes == 0;
    for (const OpKernel **kernel : {&kernels.wide, &kernels.narrow}) {
        if (*kernel == nullptr) continue;
        if ((*kernel)->dtype != out || (aliases && (*kernel)->rows > l1_ways)) *kernel = nullptr;
    }
    return kernels;
}

int multiply_in_place(const InPlaceKernels &kernels, const LinearInPlaceArguments &all, char (&message)[512]) {
    const auto at = [](const KernelBuffer &buffer, int64_t element) {
        return static_cast<char *>(buffer.data) + element * dtype_bytes(buffer.dtype);
    };
    const int32_t width = kernels.wide->columns, columns = all.out.extent[0], wide = wide_columns(kernels, columns);
    for (const OpKernel *kernel : {kernels.wide, kernels.narrow}) {
        const int32_t begin = kernel == kernels.wide ? 0 : wide, end = kernel == kernels.wide ? wide : columns;
        if (begin == end) continue;
        const int32_t panels = (end - begin + width - 1) / width;
        LinearInPlaceArguments some = all;
        some.weight.data = at(all.weight, int64_t{begin / width} * all.weight.stride[2]);
        some.weight.extent[0] = kernel->columns;
        some.weight.extent[2] = panels;
        some.bias.data = at(all.bias, begin);
        some.bias.extent[0] = panels * kernel->columns;
        some.out.data = at(all.out, begin);
        some.out.extent[0] = end - begin;
        if (const int code = call_op_kernel(*kernel, some, message)) return code;
    }
    return 0;
}

bool reads_x_in_place(const LinearCall &call) {
    const heed_linear_weights &w = *call.pieces[0].weights;
    const InPlaceKernels kernels = kernels_for(call);
    if (!kernels.are_there()) return false;
    bool fits = (kernels.wide->rows <= l1_ways || !sums_in_blocks(w)) && in_one_line(call.view) &&
                num_rows(call) >= int64_t{4} * kernels.wide->rows;
    int64_t panels = 0;
    for_each_run(call, [&](const ColumnRun &run) {
        fits = fits && in_one_line(run.piece->view) && first_column(run) % w.columns == 0;
        panels += num_panels(run);
    });
    return fits && panels * w.columns <= most_columns_in_place && bytes_of(w, panels) <= most_bytes_in_place;
}

heed_status run_in_place(const LinearCall &call) {
    const heed_linear_weights &w = *call.pieces[0].weights;
    const InPlaceKernels kernels = kernels_for(call);
    // Tasks are whole tiles of the kernel that has most work: the last tile of the other one may be in part.
    bool has_wide = false;
    int64_t panels = 0;
    for_each_run(call, [&](const ColumnRun &run) {
        has_wide = has_wide || wide_columns(kernels, run.num_columns) > 0;
        panels += num_panels(run);
    });
    const int64_t tile = (has_wide ? kernels.wide : kernels.narrow)->rows;
    const int64_t rows = num_rows(call), tiles = (rows + tile - 1) / tile;
    // (Arithmetic in terms of bytes: a core computes some 8 operations while it moves one.)
    const double flops = 2.0 * static_cast<double>(rows * w.dim_in * panels * w.columns);
    const int32_t threads = op_threads(call.execution, flops / 8);
    const int64_t enough = std::min(static_cast<int64_t>(flops / task_flops) + 1, threads * tasks_per_thread);
    const int64_t share = std::max<int64_t>(tiles / enough, 1);
    const int64_t tasks = std::min(round_up((tiles + share - 1) / share, threads), tiles);
    const auto task = [&](int64_t index, int32_t, char(&message)[512]) {
        const int64_t begin = tiles * index / tasks * tile, end = std::min(tiles * (index + 1) / tasks * tile, rows);
        int code = 0;
        for_each_run(call, [&](const ColumnRun &run) {
            if (code == 0) code = multiply_rows(call, run, begin, end - begin, message);
        });
        return code;
    };
    return run_op(call.name, call.execution, threads, tasks, task);
}

}  // namespace heed
