// Gradients of dense layers, y = x W^T + bias, through the kernels of the forward: dx = dy (W^T)^T, dW = dy^T (x^T)^T.
#pragma once

#include "ops/linear.h"

namespace heed {

// The same matrix with n and k exchanged.
WeightSource transposed(const WeightSource &weight);

// What packed weights hold, in their own memory.
WeightSource unpacked(const heed_linear_weights &weights);

// Where and how gradients are computed: `name` is the API function of a failure; elements are of `dtype`.
struct GradientRun {
    const char *name;
    heed_dtype dtype;
    const heed_execution &execution;
    void *scratch = nullptr;  // CUDA: of what the functions below need, on the device

    bool on_cuda() const { return runs_on_cuda(&execution); }
};

// x [rows, dim_in] and dy [rows, dim_out], packed.
struct LinearRows {
    int64_t rows;
    int32_t dim_in, dim_out;
};

// dx [rows, dim_in] = dy W. Scratch: cuda::linear_gradient_scratch(), also of the next.
heed_status linear_input_gradient(const GradientRun &run, const LinearRows &r, const void *dy,
                                  const WeightSource &weight, void *dx);

// dweight [dim_out, dim_in] = dy^T x, packed.
heed_status linear_weight_gradient(const GradientRun &run, const LinearRows &r, const void *dy, const void *x,
                                   void *dweight);

// Columns [first, first + count) of [rows, width].
struct ColumnRange {
    int64_t rows;
    int32_t width, first, count;
};

// to[n] += sum of column n of the range of dy over the rows, in double, on CUDA in f32; `to` is of to_dtype. Scratch:
// cuda::column_sums_scratch() floats.
heed_status add_column_sums(const GradientRun &run, const void *dy, const ColumnRange &range, void *to,
                            heed_dtype to_dtype);

// to[i] += from[i]; sums round to to_dtype.
heed_status add_elements(const GradientRun &run, const void *from, int64_t count, void *to, heed_dtype to_dtype);

// to += from [dim_out, dim_in], packed; an element of `to` lies where `place`, of memory of to_dtype, says.
heed_status add_matrix(const GradientRun &run, const void *from, int32_t dim_out, int32_t dim_in,
                       const WeightSource &place, heed_dtype to_dtype);

}  // namespace heed
