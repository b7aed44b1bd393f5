// Columns and rows of dense layers that are in one line.
#pragma once

#include "runtime/ops/linear.h"

namespace heed {

// Consecutive columns of a piece that are in one line: all of them, or one head.
struct ColumnRun {
    const LinearPiece *piece;
    int32_t head, num_columns;
};

inline bool heads_are_packed(const View &view) { return view.extent[2] == 1 || view.stride[2] == view.extent[3]; }

inline int32_t num_runs(const LinearPiece &piece) {
    return heads_are_packed(piece.view) ? 1 : narrow(piece.view.extent[2]);
}

inline ColumnRun run_at(const LinearCall &call, int32_t index) {
    const LinearPiece *piece = call.pieces;
    for (; index >= num_runs(*piece); piece++) index -= num_runs(*piece);
    const bool packed = heads_are_packed(piece->view);
    return {piece, index, narrow(piece->view.extent[3] * (packed ? piece->view.extent[2] : 1))};
}

// The column of the weights where the run begins.
inline int32_t first_column(const ColumnRun &run) {
    return run.piece->first_column + run.head * narrow(run.piece->view.extent[3]);
}

// Panels that hold some of the columns.
inline int32_t num_panels(const ColumnRun &run) {
    const int32_t width = run.piece->weights->columns, first = first_column(run) % width;
    return narrow((int64_t{first} + run.num_columns + width - 1) / width);
}

// `steps` steps of whole panels, from a column and a step on.
inline KernelBuffer panels_from(const heed_linear_weights &w, int32_t column, int32_t step, int32_t steps,
                                int32_t panels) {
    const int32_t width = w.columns, k = w.k_steps;
    const int64_t at = (int64_t{column / width} * k + step) * width + column % width;
    return {const_cast<char *>(w.panels.data()) + at * w.k_step * dtype_bytes(w.dtype),
            w.k_step == 2 ? HEED_I32 : w.dtype,
            3,
            {width, steps, panels},
            {1, width, k * width}};
}

inline heed_dtype out_dtype(const LinearCall &call) {
    return call.out_is_f32 ? HEED_F32 : call.pieces[0].weights->dtype;
}

// Whether tokens of all sequences have one stride.
inline bool in_one_line(const View &view) {
    return view.extent[0] == 1 || view.extent[1] == 1 || view.stride[0] == view.stride[1] * view.extent[1];
}

inline int64_t row_stride(const View &view) { return view.extent[1] == 1 ? view.stride[0] : view.stride[1]; }

}  // namespace heed
