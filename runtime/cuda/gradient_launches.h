// What gradients of dense layers and of whole layers launch, on the execution's stream. Matrices are [rows, columns];
// strides of their rows are in elements.
#pragma once

#include "ops/steps.h"

namespace heed::cuda {

// to [columns, to_columns], zeros from column `rows` of it on.
heed_status launch_transpose(const heed_execution &execution, heed_dtype dtype, const MatrixMove &move,
                             int64_t to_columns);

// A key padding of the rows: uint8 [rows], or NULL.
struct RowPadding {
    const void *bytes = nullptr;
    bool true_hides = false;
};

// Rows, with zeros for those that the padding hides.
heed_status launch_copy_rows(const heed_execution &execution, heed_dtype dtype, const MatrixMove &move,
                             const RowPadding &padding = {});

// place.data += from, where elements of `to_dtype` are placed as `place` says, those of `from` alike, or packed. One of
// the types is f32, or they are the same.
struct MatrixSum {
    const void *from;
    heed_dtype from_dtype;
    WeightSource place;
    heed_dtype to_dtype;
    int64_t rows, columns;
    bool from_placed = false;
};
heed_status launch_add(const heed_execution &execution, const MatrixSum &sum);

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
int64_t column_sums_scratch(int64_t rows, int64_t columns);
heed_status launch_column_sums(const heed_execution &execution, const ColumnSums &sums);

// Clears the gradient where x has reached the limit.
heed_status launch_clip_gradient(const heed_execution &execution, heed_dtype dtype, const void *x, void *gradient,
                                 int64_t elements, float limit);

// dy becomes dx, products [rows, length] are dy times the normalised x; sums are not written.
heed_status launch_norm_gradient(const heed_execution &execution, heed_dtype dtype, const NormGradient &norm);

}  // namespace heed::cuda
