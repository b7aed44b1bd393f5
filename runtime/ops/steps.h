// What the steps between tensors take, on any device: those of dense layers' gradients and of whole layers.
#pragma once

#include "runtime/backend.h"
#include "runtime/ops/linear.h"

namespace heed {

// Of a sum that the caller gave for a tensor of `dtype`: that type, or f32.
inline heed_dtype dtype_of_sum(const heed_tensor &sum, heed_dtype dtype) {
    return sum.dtype == HEED_F32 ? HEED_F32 : dtype;
}

constexpr int64_t element_share = 1 << 14;  // elements that a thread takes at a time

// Where and how steps run: `name` is the API function of a failure; elements are of `dtype`.
struct StepRun {
    const char *name;
    heed_dtype dtype;
    const heed_execution &execution;
    void *scratch = nullptr;  // of the steps below that say so

    const Backend &backend() const { return backend_of(execution.device); }
};

// Memory of one call beyond its fixed parts: on the CPU of the heap, on CUDA [first, first + room) of the workspace.
struct Temporary {
    const char *name;  // of the API function
    const heed_execution &execution;
    int64_t first, room;
};

// x [rows, dim_in] and dy [rows, dim_out], packed.
struct LinearRows {
    int64_t rows;
    int32_t dim_in, dim_out;
};

// Columns [first, first + count) of [rows, width].
struct ColumnRange {
    int64_t rows;
    int32_t width, first, count;
};

// Rows of [rows, columns]; strides in elements.
struct MatrixMove {
    const void *from;
    int64_t from_stride;
    void *to;
    int64_t to_stride;
    int64_t rows, columns;  // of `from`
};

// Rows [batch, len, columns] of the caller's, packed, of which a call hides some.
struct HiddenRows {
    const void *data;
    int32_t batch, len;
    int64_t columns;
    const int32_t *lens;  // [batch] on the host: tokens from there on are hidden
    const void *padding;  // uint8 [batch, len], or NULL
    bool true_hides;
};

// Layer norm of packed rows of `length` elements, in place; weight and bias [length].
struct NormRows {
    void *data;
    int64_t rows;
    int32_t length;
    const float *weight, *bias;
    float epsilon;
    const OpKernel *kernel;  // CPU
    float *scratch;          // CPU: two floats a row
};

struct NormMemory {
    float *dweight, *dbias;
};

// Layer norm of x [rows, length]: dy becomes dx; dweight and dbias [length] are written.
struct NormGradient {
    const void *x;
    void *dy;
    int64_t rows;
    int32_t length;
    const float *weight;
    float epsilon;
    NormMemory sums;
    float *products;  // CUDA: scratch [rows, length]
};

// A key padding [batch, keys], alone or joined with a mask, for every line (sequence * heads + head) * rows + row.
struct KeyPadding {
    const void *padding;
    const void *mask;  // NULL = none; else `view` of [batch, heads, rows, keys]
    View view;
    int32_t heads, rows, keys;
    int64_t lines;
    bool true_hides;
    bool as_bias;  // f32, 0 and minus infinity; else uint8 as the mask
    void *out;     // [lines, keys]
};

}  // namespace heed
