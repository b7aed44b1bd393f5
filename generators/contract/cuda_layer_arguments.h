#pragma once
// The arguments of CUDA's operations of layers and their gradients, as cuda_arguments.h says. Matrices are (column,
// row); *_first is the address of the first element; count is below 2^30.
#include "generators/contract/arguments.h"

// In place: rows of `length` elements; weight, bias f32.
#define HEED_CUDA_LAYER_NORM(INPUT, VALUE, OUTPUT)                                                                     \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(length, int32_t)                                                                                             \
    VALUE(wide, int32_t)                                                                                               \
    VALUE(epsilon, float)                                                                                              \
    VALUE(x_first, uint64_t)                                                                                           \
    VALUE(weight_first, uint64_t)                                                                                      \
    VALUE(bias_first, uint64_t)                                                                                        \
    OUTPUT(named, u8, 1)

// dy becomes dx; products f32 (element, row): dy times the normalised x.
#define HEED_CUDA_LAYER_NORM_GRADIENT(INPUT, VALUE, OUTPUT)                                                            \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(length, int32_t)                                                                                             \
    VALUE(wide, int32_t)                                                                                               \
    VALUE(epsilon, float)                                                                                              \
    VALUE(x_first, uint64_t)                                                                                           \
    VALUE(weight_first, uint64_t)                                                                                      \
    VALUE(dy_first, uint64_t)                                                                                          \
    VALUE(products_first, uint64_t)                                                                                    \
    OUTPUT(named, u8, 1)

// In place.
#define HEED_CUDA_CLIP(INPUT, VALUE, OUTPUT)                                                                           \
    VALUE(count, int32_t)                                                                                              \
    VALUE(wide, int32_t)                                                                                               \
    VALUE(limit, float)                                                                                                \
    VALUE(x_first, uint64_t)                                                                                           \
    OUTPUT(named, u8, 1)

// x is what was clipped; its gradient becomes 0 from the limit on.
#define HEED_CUDA_CLIP_GRADIENT(INPUT, VALUE, OUTPUT)                                                                  \
    VALUE(count, int32_t)                                                                                              \
    VALUE(wide, int32_t)                                                                                               \
    VALUE(limit, float)                                                                                                \
    VALUE(x_first, uint64_t)                                                                                           \
    VALUE(gradient_first, uint64_t)                                                                                    \
    OUTPUT(named, u8, 1)

// line = (sequence * heads + head) * rows + row. padding uint8 (key, sequence); mask or 0, with its strides; out (key,
// line): uint8 as the mask, or, as_bias, f32 0 and minus infinity.
#define HEED_CUDA_KEY_PADDING(INPUT, VALUE, OUTPUT)                                                                    \
    VALUE(lines, int32_t)                                                                                              \
    VALUE(heads, int32_t)                                                                                              \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(keys, int32_t)                                                                                               \
    VALUE(true_hides, int32_t)                                                                                         \
    VALUE(as_bias, int32_t)                                                                                            \
    VALUE(padding_first, uint64_t)                                                                                     \
    VALUE(mask_first, uint64_t)                                                                                        \
    VALUE(mask_batch, uint64_t)                                                                                        \
    VALUE(mask_head, uint64_t)                                                                                         \
    VALUE(mask_row, uint64_t)                                                                                          \
    VALUE(mask_key, uint64_t)                                                                                          \
    VALUE(out_first, uint64_t)                                                                                         \
    OUTPUT(named, u8, 1)

// Adds element (row, column) to number row / row_block * row_outer + row % row_block * row_inner + the same of the
// column; the source is packed or, from_placed, placed alike.
#define HEED_CUDA_ADD(INPUT, VALUE, OUTPUT)                                                                            \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(columns, int32_t)                                                                                            \
    VALUE(row_block, int32_t)                                                                                          \
    VALUE(column_block, int32_t)                                                                                       \
    VALUE(from_placed, int32_t)                                                                                        \
    VALUE(from_is_f32, int32_t)                                                                                        \
    VALUE(to_is_f32, int32_t)                                                                                          \
    VALUE(row_outer, uint64_t)                                                                                         \
    VALUE(row_inner, uint64_t)                                                                                         \
    VALUE(column_outer, uint64_t)                                                                                      \
    VALUE(column_inner, uint64_t)                                                                                      \
    VALUE(from_first, uint64_t)                                                                                        \
    VALUE(to_first, uint64_t)                                                                                          \
    OUTPUT(named, u8, 1)

// Sums of slices of slice_rows rows; from_stride in elements; the destination is (column, slice). adds: one slice, on
// top of what is there.
#define HEED_CUDA_COLUMN_SUMS(INPUT, VALUE, OUTPUT)                                                                    \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(columns, int32_t)                                                                                            \
    VALUE(slice_rows, int32_t)                                                                                         \
    VALUE(adds, int32_t)                                                                                               \
    VALUE(from_is_f32, int32_t)                                                                                        \
    VALUE(to_is_f32, int32_t)                                                                                          \
    VALUE(from_stride, uint64_t)                                                                                       \
    VALUE(from_first, uint64_t)                                                                                        \
    VALUE(to_first, uint64_t)                                                                                          \
    OUTPUT(named, u8, 1)

// padding uint8 (row) or 0: zeros for hidden rows.
#define HEED_CUDA_COPY_ROWS(INPUT, VALUE, OUTPUT)                                                                      \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(columns, int32_t)                                                                                            \
    VALUE(wide, int32_t)                                                                                               \
    VALUE(true_hides, int32_t)                                                                                         \
    VALUE(from_stride, uint64_t)                                                                                       \
    VALUE(to_stride, uint64_t)                                                                                         \
    VALUE(from_first, uint64_t)                                                                                        \
    VALUE(to_first, uint64_t)                                                                                          \
    VALUE(padding_first, uint64_t)                                                                                     \
    OUTPUT(named, u8, 1)

// to_columns: columns of the destination, zeros after the rows.
#define HEED_CUDA_TRANSPOSE(INPUT, VALUE, OUTPUT)                                                                      \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(columns, int32_t)                                                                                            \
    VALUE(to_columns, int32_t)                                                                                         \
    VALUE(from_stride, uint64_t)                                                                                       \
    VALUE(to_stride, uint64_t)                                                                                         \
    VALUE(from_first, uint64_t)                                                                                        \
    VALUE(to_first, uint64_t)                                                                                          \
    OUTPUT(named, u8, 1)
