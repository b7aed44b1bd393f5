// Dense layers on packed weights, for heed_linear and for whole attention layers.
#pragma once

#include <limits>

#include "runtime/backend.h"
#include "runtime/ops/heap_array.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/ops/op_run.h"
#include "runtime/ops/rows.h"

// On the CPU panels of `columns` columns each, in the order that the kernels for this machine read
// them.
struct heed_linear_weights {
    static constexpr int32_t max_tiles = 5;
    heed_dtype dtype;
    int32_t dim_in, dim_out;
    int32_t columns, num_panels;
    int32_t k_step;   // elements of k that the kernels take at once: 1, or 2 (pairs of bf16)
    int32_t k_steps;  // of dim_in, rounded up to a multiple of linear_step_block
    int32_t num_tiles;
    const heed::OpKernel *tiles[max_tiles];      // linear: that of many rows, then by falling rows
    const heed::OpKernel *row_tiles[max_tiles];  // linear_rows for each
    const heed::OpKernel *sums =
        nullptr;  // of the first tile: products of the x that it reads, out f32; NULL: not there
    heed::InPlaceKernels in_place;
    heed::HeapArray<char> panels;  // [panel][step of k][column][k_step], one panel of zeros after the last
    heed::HeapArray<float> bias;   // [column], zeros after the last

    heed_device device = HEED_CPU;
    const void *device_weight = nullptr, *device_bias = nullptr;  // CUDA: the caller's; bias may be NULL
    int64_t row_stride = 0;                                       // of device_weight
    heed::OwnedMemory owned_weight, owned_bias;                   // CUDA: where they are a layer's
};

namespace heed {

// Element [n][k] of W, n = n1 * n_block + n0 and k = k1 * k_block + k0, is at
// n1 * n_outer + n0 * n_inner + k1 * k_outer + k0 * k_inner.
struct WeightSource {
    const void *data;
    int32_t n_block, k_block;
    int64_t n_outer, n_inner, k_outer, k_inner;

    // [dim_out, dim_in], row-major.
    static WeightSource row_major(const void *data, int32_t dim_in, int32_t dim_out, int64_t row_stride) {
        return {data, dim_out, dim_in, 0, row_stride, 0, 1};
    }
    int64_t row_offset(int64_t n) const { return n / n_block * n_outer + n % n_block * n_inner; }
    int64_t column_offset(int64_t k) const { return k / k_block * k_outer + k % k_block * k_inner; }
};

// The same matrix with n and k exchanged.
inline WeightSource transposed(const WeightSource &w) {
    return {w.data, w.k_block, w.n_block, w.k_outer, w.k_inner, w.n_outer, w.n_inner};
}

// A dense layer of the caller's: `bias` [dim_out] of dtype, or NULL.
struct LinearSource {
    heed_dtype dtype;
    int32_t dim_in, dim_out;
    WeightSource weight;
    const void *bias;
};

// For CUDA: the rows of `source`, which are in its memory one after another, stay where they are.
inline void refer_to(const LinearSource &source, heed_linear_weights *weights) {
    weights->dtype = source.dtype;
    weights->dim_in = source.dim_in;
    weights->dim_out = source.dim_out;
    weights->device = HEED_CUDA;
    weights->device_weight = source.weight.data;
    weights->device_bias = source.bias;
    weights->row_stride = source.weight.n_inner;
}

// For the CPU. On the execution's threads, or on the caller's without one. UNSUPPORTED without
// kernels for this machine, OUT_OF_MEMORY.
heed_status pack_linear(const char *name, const LinearSource &source, heed_linear_weights *weights,
                        const heed_execution *execution = nullptr);

// Columns [first_column, first_column + num_heads * head_dim) of the weights' output, written to `out` as
// [batch, len, num_heads, head_dim].
struct LinearPiece {
    const heed_linear_weights *weights;
    int32_t first_column;
    void *out;
    View view;
    float clip;  // no_clip = off
};
constexpr float no_clip = std::numeric_limits<float>::infinity();

// One x [batch, len, 1, dim_in] for all pieces, whose weights share dtype and dim_in. Nothing is empty; strides of
// tokens are below 2^31.
struct LinearCall {
    const char *name;  // of the API function
    const void *x;
    View view;
    const LinearPiece *pieces;
    int32_t num_pieces;
    const heed_execution *execution;
    bool out_is_f32 = false;  // rather than of the weights' dtype; CPU: weights that have `sums` can do it
};

}  // namespace heed
