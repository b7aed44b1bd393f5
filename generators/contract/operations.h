#pragma once
// Operations around attention: their arguments on CPUs, their names, their kernels.

#include <initializer_list>

#include "generators/contract/attention_arguments.h"
#include "generators/contract/cuda_arguments.h"
#include "generators/contract/cuda_layer_arguments.h"

// Arguments on CPUs: a kernel works on one block of rows, serial and without scratch; strides are below 2^31.

// x, out (pair, part, head, token), cos, sin (pair, table row), positions (token). Pair strides are (1, pairs) or
// (2, 1). Token t reads the table row positions[t] + position_step * t, clamped into the table. direction is 1, or -1
// to rotate back. out may be x.
#define HEED_ROPE(INPUT, VALUE, OUTPUT)                                                                                \
    INPUT(x, own, 4)                                                                                                   \
    INPUT(cos, f32, 2)                                                                                                 \
    INPUT(sin, f32, 2)                                                                                                 \
    INPUT(positions, i32, 1)                                                                                           \
    VALUE(position_step, int32_t)                                                                                      \
    VALUE(direction, float)                                                                                            \
    OUTPUT(out, own, 4)

// x, codes (d, head, token), scale (head, token).
#define HEED_KV_APPEND(INPUT, VALUE, OUTPUT)                                                                           \
    INPUT(x, own, 3)                                                                                                   \
    OUTPUT(codes, i8, 3)                                                                                               \
    OUTPUT(scale, f32, 2)

// x (d, row, state), lse (row, state), sink (row), -inf = none. row_max (row), row_sum (row) and weights (row, state)
// are scratch. merged_lse (row), out (d, row).
#define HEED_MERGE_STATES(INPUT, VALUE, OUTPUT)                                                                        \
    INPUT(x, own, 3)                                                                                                   \
    INPUT(lse, f32, 2)                                                                                                 \
    INPUT(sink, f32, 1)                                                                                                \
    OUTPUT(row_max, f32, 1)                                                                                            \
    OUTPUT(row_sum, f32, 1)                                                                                            \
    OUTPUT(weights, f32, 2)                                                                                            \
    OUTPUT(merged_lse, f32, 1)                                                                                         \
    OUTPUT(out, own, 2)

// keep (j, i) is element first + i * row_length + j of the mask.
#define HEED_DROPOUT_MASK(INPUT, VALUE, OUTPUT)                                                                        \
    VALUE(seed, uint64_t)                                                                                              \
    VALUE(offset, uint64_t)                                                                                            \
    VALUE(first, uint64_t)                                                                                             \
    VALUE(row_length, uint64_t)                                                                                        \
    VALUE(threshold, uint64_t)                                                                                         \
    OUTPUT(keep, u8, 2)

// Queries first_row, first_row + 1, .. of one head, which see the keys that TaskField says. products (key, row): q . k;
// mask, bias, bias_16 (key, row). mode: ProbsMode. The result is probs (key, row), or probs_16 in dtype, which is an
// argument unless dtype is f32; the other one has no rows; scores are those of keys. Products with keys that a row does
// not see may be any bits.
#define HEED_ATTENTION_PROBS(INPUT, VALUE, OUTPUT)                                                                     \
    INPUT(products, f32, 2)                                                                                            \
    INPUT(mask, u8, 2)                                                                                                 \
    INPUT(bias, f32, 2)                                                                                                \
    INPUT(bias_16, u16, 2)                                                                                             \
    VALUE(kv_len, int32_t)                                                                                             \
    VALUE(first_row, int32_t)                                                                                          \
    VALUE(visible_begin, int32_t)                                                                                      \
    VALUE(visible_end, int32_t)                                                                                        \
    VALUE(position_offset, int32_t)                                                                                    \
    VALUE(mode, int32_t)                                                                                               \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    HEED_HEAD_VALUES(VALUE)                                                                                            \
    VALUE(sink, float)                                                                                                 \
    OUTPUT(scores, f32, 2)                                                                                             \
    OUTPUT(probs, f32, 2)                                                                                              \
    OUTPUT(probs_16, own, 2)

// x (k, row); tiles (step of block, row of tile, block, tile), blocks of linear_step_block steps, tiles of
// OpKernel::rows rows; steps after the last one are 0, rows repeat it.
#define HEED_LINEAR_ROWS(INPUT, VALUE, OUTPUT)                                                                         \
    INPUT(x, own, 2)                                                                                                   \
    OUTPUT(tiles, step, 4)

// x: tiles as linear_rows leaves them; weight (lane, step, panel), panels of OpKernel::columns columns, as many steps
// as x, 0 after the last element; before: what the sums start from, (lane, row of tile, panel, tile), any strides but
// the lanes'; it may be out, in f32, of kernels whose out is f32; bias (column); clip: out is clamped to [-clip, clip],
// infinity = off, NaN stays NaN; out (column, row). Whole panels are read: of bias and weight too.
#define HEED_LINEAR(INPUT, VALUE, OUTPUT)                                                                              \
    INPUT(x, step, 4)                                                                                                  \
    INPUT(weight, panel, 3)                                                                                            \
    INPUT(before, f32, 4)                                                                                              \
    INPUT(bias, f32, 1)                                                                                                \
    VALUE(clip, float)                                                                                                 \
    OUTPUT(out, own, 2)

// x as in HEED_LINEAR, of any strides but that of the steps: rows of pairs where they are, or packed; weight; out
// (lane, row of tile, panel, tile): products in whole tiles.
#define HEED_ATTENTION_PRODUCTS(INPUT, VALUE, OUTPUT)                                                                  \
    INPUT(x, step, 4)                                                                                                  \
    INPUT(weight, panel, 3)                                                                                            \
    OUTPUT(out, f32, 4)

// x (k, row); weight (column, step, panel), bias, clip and out as in HEED_LINEAR. A kernel takes OpKernel::columns
// columns of each panel: all, or the first half.
#define HEED_LINEAR_IN_PLACE(INPUT, VALUE, OUTPUT)                                                                     \
    INPUT(x, own, 2)                                                                                                   \
    INPUT(weight, panel, 3)                                                                                            \
    INPUT(bias, f32, 1)                                                                                                \
    VALUE(clip, float)                                                                                                 \
    OUTPUT(out, own, 2)

// x, out (d, row); weight, bias (d). mean and factor (row) are scratch. out may be x.
#define HEED_LAYER_NORM(INPUT, VALUE, OUTPUT)                                                                          \
    INPUT(x, own, 2)                                                                                                   \
    INPUT(weight, f32, 1)                                                                                              \
    INPUT(bias, f32, 1)                                                                                                \
    VALUE(epsilon, float)                                                                                              \
    OUTPUT(mean, f32, 1)                                                                                               \
    OUTPUT(factor, f32, 1)                                                                                             \
    OUTPUT(out, own, 2)

// Layer norm backwards, of x, dy (d, row): dx = factor * (g - mean_g - n * mean_gn) with g = dy * weight, n the
// normalised x; mean and factor (row) as forward has them, mean_g and mean_gn (row): means of g and g * n. dx may be
// dy. Each output may have no rows.
#define HEED_LAYER_NORM_GRADIENT(INPUT, VALUE, OUTPUT)                                                                 \
    INPUT(x, own, 2)                                                                                                   \
    INPUT(dy, own, 2)                                                                                                  \
    INPUT(weight, f32, 1)                                                                                              \
    VALUE(epsilon, float)                                                                                              \
    OUTPUT(mean, f32, 1)                                                                                               \
    OUTPUT(factor, f32, 1)                                                                                             \
    OUTPUT(mean_g, f32, 1)                                                                                             \
    OUTPUT(mean_gn, f32, 1)                                                                                            \
    OUTPUT(dx, own, 2)

// At most sum_columns columns of x and dy (d, row): dweight, dbias (d), the sums over rows of dy * n and of dy.
#define HEED_LAYER_NORM_SUMS(INPUT, VALUE, OUTPUT)                                                                     \
    INPUT(x, own, 2)                                                                                                   \
    INPUT(dy, own, 2)                                                                                                  \
    INPUT(mean, f32, 1)                                                                                                \
    INPUT(factor, f32, 1)                                                                                              \
    OUTPUT(dweight, f32, 1)                                                                                            \
    OUTPUT(dbias, f32, 1)

// sums (c): over the rows of x (c, row), of at most sum_columns columns.
#define HEED_COLUMN_SUMS(INPUT, VALUE, OUTPUT)                                                                         \
    INPUT(x, own, 2)                                                                                                   \
    OUTPUT(sums, f32, 1)

// sum (k, n) = before + (from + from_own), of any strides; one of the two is a 0 that does not move. sum may be before.
#define HEED_ADD(INPUT, VALUE, OUTPUT)                                                                                 \
    INPUT(from, f32, 2)                                                                                                \
    INPUT(from_own, own, 2)                                                                                            \
    INPUT(before, own, 2)                                                                                              \
    OUTPUT(sum, own, 2)

// The logits of a tile of gradients: OpKernel::rows queries i x OpKernel::columns keys j. lse, delta = dout . out (i);
// mask, bias as the tile of logits; score_buffers: those that a score function declares. form: BackwardForm;
// first_element, row_elements: the dropout mask's element of the tile's first logit, and its elements per row.
#define HEED_BACKWARD_ROWS(INPUT)                                                                                      \
    INPUT(lse, f32, 1)                                                                                                 \
    INPUT(delta, f32, 1)                                                                                               \
    INPUT(mask, u8, 2)                                                                                                 \
    INPUT(bias, f32, 2)                                                                                                \
    INPUT(score_buffer_0, i32, 1)                                                                                      \
    INPUT(score_buffer_1, i32, 1)                                                                                      \
    INPUT(score_buffer_2, i32, 1)                                                                                      \
    INPUT(score_buffer_3, i32, 1)
#define HEED_BACKWARD_VALUES(VALUE)                                                                                    \
    VALUE(sequence, int32_t)                                                                                           \
    VALUE(head, int32_t)                                                                                               \
    VALUE(first_query, int32_t)                                                                                        \
    VALUE(first_key, int32_t)                                                                                          \
    VALUE(kv_len, int32_t)                                                                                             \
    VALUE(visible_begin, int32_t)                                                                                      \
    VALUE(visible_end, int32_t)                                                                                        \
    VALUE(position_offset, int32_t)                                                                                    \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    HEED_DROPOUT_VALUES(VALUE)                                                                                         \
    HEED_HEAD_VALUES(VALUE)                                                                                            \
    VALUE(first_element, uint64_t)                                                                                     \
    VALUE(row_elements, uint64_t)

// One tile of gradients in floats. q, dout, k and gradients are (element of chunk, row, chunk), backward_chunk elements
// a chunk, zeros after the last; k_lanes, v_lanes (key of chunk, d, chunk). dq_before, dk_before and dv_before may be
// dq, dk and dv. num_rows queries and num_keys keys make the sums; hides_nonfinite: some key or row is NaN or infinite
// and must not reach what does not see it. weights, score_grads, logit_grads (j, i). dq, dk and dv have multiples of 12
// rows and 32 columns that hold the tile. See generators/attention/backward.h.
#define HEED_ATTENTION_BACKWARD(INPUT, VALUE, OUTPUT)                                                                  \
    INPUT(q, f32, 3)                                                                                                   \
    INPUT(dout, f32, 3)                                                                                                \
    INPUT(k, f32, 3)                                                                                                   \
    INPUT(k_lanes, f32, 3)                                                                                             \
    INPUT(v_lanes, f32, 3)                                                                                             \
    HEED_BACKWARD_ROWS(INPUT)                                                                                          \
    INPUT(dq_before, f32, 3)                                                                                           \
    INPUT(dk_before, f32, 3)                                                                                           \
    INPUT(dv_before, f32, 3)                                                                                           \
    VALUE(form, int32_t)                                                                                               \
    VALUE(hides_nonfinite, int32_t)                                                                                    \
    VALUE(num_rows, int32_t)                                                                                           \
    VALUE(num_keys, int32_t)                                                                                           \
    HEED_BACKWARD_VALUES(VALUE)                                                                                        \
    OUTPUT(weights, f32, 2)                                                                                            \
    OUTPUT(score_grads, f32, 2)                                                                                        \
    OUTPUT(logit_grads, f32, 2)                                                                                        \
    OUTPUT(dq, f32, 3)                                                                                                 \
    OUTPUT(dk, f32, 3)                                                                                                 \
    OUTPUT(dv, f32, 3)

// A tile of gradients in words of two bf16: q_words, dout_words, k_rows, v_rows (pair of elements, row); q_pairs,
// dout_pairs (c, pair of queries, chunk), k_columns (pair of keys, c, chunk). weights, score_grads and logit_grads are
// (i, j), dq is (i, c, chunk). See generators/attention/backward_tiles.h.
#define HEED_ATTENTION_BACKWARD_BF16(INPUT, VALUE, OUTPUT)                                                             \
    INPUT(q_words, i32, 2)                                                                                             \
    INPUT(dout_words, i32, 2)                                                                                          \
    INPUT(q_pairs, i32, 3)                                                                                             \
    INPUT(dout_pairs, i32, 3)                                                                                          \
    INPUT(k_rows, i32, 2)                                                                                              \
    INPUT(v_rows, i32, 2)                                                                                              \
    INPUT(k_columns, i32, 3)                                                                                           \
    HEED_BACKWARD_ROWS(INPUT)                                                                                          \
    INPUT(dq_before, f32, 3)                                                                                           \
    INPUT(dk_before, f32, 3)                                                                                           \
    INPUT(dv_before, f32, 3)                                                                                           \
    VALUE(form, int32_t)                                                                                               \
    HEED_BACKWARD_VALUES(VALUE)                                                                                        \
    OUTPUT(weights, u16, 2)                                                                                            \
    OUTPUT(score_grads, u16, 2)                                                                                        \
    OUTPUT(logit_grads, f32, 2)                                                                                        \
    OUTPUT(dq, f32, 3)                                                                                                 \
    OUTPUT(dk, f32, 3)                                                                                                 \
    OUTPUT(dv, f32, 3)

// Rows of queries of one block and head, before its tiles: dout, out (d, row), row_lse (row). Rows of lse that the
// call lacks, and rows without keys (minus infinity), get backward_no_key and a delta of 0.
#define HEED_BACKWARD_STATS(INPUT, VALUE, OUTPUT)                                                                      \
    INPUT(dout, own, 2)                                                                                                \
    INPUT(out, own, 2)                                                                                                 \
    INPUT(row_lse, f32, 1)                                                                                             \
    OUTPUT(lse, f32, 1)                                                                                                \
    OUTPUT(delta, f32, 1)

// A block of rows x (d, row) as operands of tiles: chunks (c, row, chunk), zeros after the last element and row; lanes
// (c, d, x): element d of row 32 x + c. Rows with lse backward_no_key are zeros. largest (0): the greatest element's
// size, as bits. chunks or lanes may have no last dimension.
#define HEED_BACKWARD_ROWS_OF(INPUT, VALUE, OUTPUT)                                                                    \
    INPUT(x, own, 2)                                                                                                   \
    INPUT(lse, f32, 1)                                                                                                 \
    OUTPUT(chunks, f32, 3)                                                                                             \
    OUTPUT(lanes, f32, 3)                                                                                              \
    OUTPUT(largest, i32, 1)

// A block of rows in bf16: words (row, pair of elements), pairs (c, pair of rows, chunk), row_words (pair of elements,
// row), columns (pair of rows, c, chunk). NaN and infinities are zeros in pairs and columns.
#define HEED_BACKWARD_WORDS(INPUT, VALUE, OUTPUT)                                                                      \
    INPUT(x, own, 2)                                                                                                   \
    INPUT(lse, f32, 1)                                                                                                 \
    OUTPUT(words, i32, 2)                                                                                              \
    OUTPUT(pairs, i32, 3)                                                                                              \
    OUTPUT(row_words, i32, 2)                                                                                          \
    OUTPUT(columns, i32, 3)                                                                                            \
    OUTPUT(largest, i32, 1)

// out (d, row) = factor * sums (c, row, chunk), of any strides.
#define HEED_BACKWARD_STORE(INPUT, VALUE, OUTPUT)                                                                      \
    INPUT(sums, f32, 3)                                                                                                \
    VALUE(factor, float)                                                                                               \
    OUTPUT(out, own, 2)

// What infinities and NaN of bf16 give to those who see them, after a tile that took them for zeros: sums (n, half,
// pair, chunk) = before + the sum over m of factors (n, m) * elements (half, pair, chunk, m), of factors that are not 0
// and elements that are not finite. sums may be before.
#define HEED_BACKWARD_REPAIR(INPUT, VALUE, OUTPUT)                                                                     \
    INPUT(factors, own, 2)                                                                                             \
    INPUT(elements, own, 4)                                                                                            \
    INPUT(before, f32, 4)                                                                                              \
    OUTPUT(sums, f32, 4)

// Where several logits share an element of the bias: dbias (j, i) = before + the sum of grads (j, i) of any strides
// over the axes that dbias has once. dbias may be before.
#define HEED_BACKWARD_BIAS(INPUT, VALUE, OUTPUT)                                                                       \
    INPUT(grads, f32, 2)                                                                                               \
    INPUT(before, f32, 2)                                                                                              \
    OUTPUT(dbias, f32, 2)

// dsink (0) = before (0) - the sum over rows of exp(sink - lse) * delta.
#define HEED_BACKWARD_SINKS(INPUT, VALUE, OUTPUT)                                                                      \
    INPUT(lse, f32, 1)                                                                                                 \
    INPUT(delta, f32, 1)                                                                                               \
    INPUT(before, f32, 1)                                                                                              \
    VALUE(sink, float)                                                                                                 \
    OUTPUT(dsink, f32, 1)

// The operations: name, arguments on CPUs, arguments on CUDA, kernels, in the terms of generators/table/operations.h.
//
// They are bound by memory: except for products and exponentials, AVX-512 kernels would add code and no speed.
// attention_scores: linear's products of queries and packed keys; out is f32. attention_products: the same where tiles
// of AMX go to memory as they are. kv_append is for int8 caches, where it quantises: into a cache of its own type
// tokens go by rope and memcpy. The rotary dimension, the kind of pairs, the number of states, strides and dropout_p
// are run-time values. Gradients of CPUs are tiles of floats, whatever the type of the tensors, or of bf16. linear: a
// full register tile, and smaller ones for few rows, sums in f32; for one row several panels at once, whose sums hide
// the latency of each other. CUDA: for sm75 and all later chips; kv_copy moves bytes, rope serves appends to a cache of
// its own type too; linear of sm80 has tensor cores, its sm75 kernels take what is not aligned.
#define HEED_LINEAR_TILES                                                                                              \
    kernels(floats, {x86_64, avx2}).rows({1, 2, 4, 6}), kernels(floats, {avx512}).rows({1, 4, 6, 8, 12}),              \
        kernels({bf16}, {avx512bf16}).rows({1, 4, 8, 12}), kernels({bf16}, {amx}).rows({16, 32}).with(avx512bf16)
#define HEED_OPERATIONS(X)                                                                                             \
    X(add, HEED_ADD, HEED_CUDA_ADD, kernels(floats, {x86_64, avx2, sm75}))                                             \
    X(attention_backward, HEED_ATTENTION_BACKWARD, HEED_CUDA_BACKWARD_SUMS,                                            \
      kernels({f32}, {x86_64, avx2, avx512}).for_dtypes(floats), kernels({bf16}, {avx512bf16, amx}).with(avx512),      \
      kernels(floats, {sm75}))                                                                                         \
    X(attention_backward_bias, HEED_BACKWARD_BIAS, HEED_CUDA_BACKWARD_BIAS,                                            \
      kernels({f32}, {x86_64, avx2}).for_dtypes(floats), kernels(floats, {sm75}))                                      \
    X(attention_backward_keys, HEED_NO_ARGUMENTS, HEED_CUDA_BACKWARD_SUMS,                                             \
      kernels({f16, bf16}, {sm80}).head_dims({64, 128, 256}))                                                          \
    X(attention_backward_keys_plain, HEED_NO_ARGUMENTS, HEED_CUDA_BACKWARD_SUMS,                                       \
      kernels({f16, bf16}, {sm80}).head_dims({64, 128}))                                                               \
    X(attention_backward_queries, HEED_NO_ARGUMENTS, HEED_CUDA_BACKWARD_SUMS,                                          \
      kernels({f16, bf16}, {sm80}).head_dims({64, 128, 256}))                                                          \
    X(attention_backward_queries_plain, HEED_NO_ARGUMENTS, HEED_CUDA_BACKWARD_SUMS,                                    \
      kernels({f16, bf16}, {sm80}).head_dims({64, 128}))                                                               \
    X(attention_backward_repair, HEED_BACKWARD_REPAIR, HEED_NO_ARGUMENTS, kernels({bf16}, {avx2}))                     \
    X(attention_backward_rows, HEED_BACKWARD_ROWS_OF, HEED_NO_ARGUMENTS, kernels(floats, {x86_64, avx2}))              \
    X(attention_backward_sinks, HEED_BACKWARD_SINKS, HEED_CUDA_BACKWARD_SINKS,                                         \
      kernels({f32}, {x86_64, avx2}).for_dtypes(floats), kernels(floats, {sm75}))                                      \
    X(attention_backward_stats, HEED_BACKWARD_STATS, HEED_CUDA_BACKWARD_STATS, kernels(floats, {x86_64, avx2, sm75}))  \
    X(attention_backward_store, HEED_BACKWARD_STORE, HEED_NO_ARGUMENTS, kernels(floats, {x86_64, avx2}))               \
    X(attention_backward_words, HEED_BACKWARD_WORDS, HEED_NO_ARGUMENTS, kernels({bf16}, {avx2}))                       \
    X(attention_probs, HEED_ATTENTION_PROBS, HEED_CUDA_ATTENTION_PROBS, kernels(floats, {x86_64, avx2, avx512, sm75}), \
      kernels(floats, {sm75}).keys(i8))                                                                                \
    X(attention_products, HEED_ATTENTION_PRODUCTS, HEED_NO_ARGUMENTS, kernels({bf16}, {amx}).rows({32}))               \
    X(attention_scores, HEED_LINEAR, HEED_NO_ARGUMENTS, kernels({f32}, {x86_64, avx2}).rows({6}).for_dtypes(floats),   \
      kernels({f32}, {avx512}).rows({6}).for_dtypes(floats), kernels({bf16}, {avx512bf16}).rows({12}).with(avx512),    \
      kernels({bf16}, {amx}).rows({32}).with(avx512bf16))                                                              \
    X(clip, HEED_NO_ARGUMENTS, HEED_CUDA_CLIP, kernels(floats, {sm75}))                                                \
    X(clip_gradient, HEED_NO_ARGUMENTS, HEED_CUDA_CLIP_GRADIENT, kernels(floats, {sm75}))                              \
    X(column_sums, HEED_COLUMN_SUMS, HEED_CUDA_COLUMN_SUMS, kernels(floats, {x86_64, avx2, sm75}))                     \
    X(copy_rows, HEED_NO_ARGUMENTS, HEED_CUDA_COPY_ROWS, kernels(floats, {sm75}))                                      \
    X(dropout_mask, HEED_DROPOUT_MASK, HEED_NO_ARGUMENTS, kernels({u8}, {x86_64, avx2}))                               \
    X(key_padding, HEED_NO_ARGUMENTS, HEED_CUDA_KEY_PADDING, kernels({u8}, {sm75}))                                    \
    X(kv_append, HEED_KV_APPEND, HEED_CUDA_MOVE_TOKENS, kernels(floats, {x86_64, avx2, sm75}).keys(i8))                \
    X(kv_copy, HEED_NO_ARGUMENTS, HEED_CUDA_MOVE_TOKENS, kernels({u8}, {sm75}))                                        \
    X(layer_norm, HEED_LAYER_NORM, HEED_CUDA_LAYER_NORM, kernels(floats, {x86_64, avx2, sm75}))                        \
    X(layer_norm_gradient, HEED_LAYER_NORM_GRADIENT, HEED_CUDA_LAYER_NORM_GRADIENT,                                    \
      kernels(floats, {x86_64, avx2, sm75}))                                                                           \
    X(layer_norm_sums, HEED_LAYER_NORM_SUMS, HEED_NO_ARGUMENTS, kernels(floats, {x86_64, avx2}))                       \
    X(linear, HEED_LINEAR, HEED_CUDA_LINEAR, HEED_LINEAR_TILES, kernels(floats, {sm75}),                               \
      kernels({f16, bf16}, {sm80}).with(sm75))                                                                         \
    X(linear_in_place, HEED_LINEAR_IN_PLACE, HEED_NO_ARGUMENTS, kernels({f32}, {avx2}).rows({6, 12}),                  \
      kernels({f32}, {avx512}).rows({12, 13}), kernels({bf16}, {avx512bf16}).rows({12, 13}))                           \
    X(linear_rows, HEED_LINEAR_ROWS, HEED_NO_ARGUMENTS, HEED_LINEAR_TILES)                                             \
    X(merge_splits, HEED_NO_ARGUMENTS, HEED_CUDA_MERGE_SPLITS, kernels(floats, {sm75}))                                \
    X(merge_states, HEED_MERGE_STATES, HEED_CUDA_MERGE_STATES, kernels(floats, {x86_64, avx2, sm75}))                  \
    X(rope, HEED_ROPE, HEED_CUDA_MOVE_TOKENS, kernels(floats, {x86_64, avx2, sm75}))                                   \
    X(sequences, HEED_NO_ARGUMENTS, HEED_CUDA_SEQUENCES, kernels({i32}, {sm75}))                                       \
    X(transpose, HEED_NO_ARGUMENTS, HEED_CUDA_TRANSPOSE, kernels(floats, {sm75}))                                      \
    X(write_metadata, HEED_NO_ARGUMENTS, HEED_CUDA_WRITE_METADATA, kernels({i32}, {sm75}))

namespace heed {

// Steps of k whose elements are side by side in a tile of x: a vector register of floats or pairs, a row of a tile of
// AMX.
constexpr int linear_step_block = 16;
// Panels at once of linear's kernels: one row takes four; six rows take two where a panel has two vectors of AVX-512.
constexpr int linear_panels(int rows, int columns) { return rows == 1 ? 4 : rows == 6 && columns == 32 ? 2 : 1; }
// Tiles of floats with two thirds of the most rows take each block of steps one after the other, so many of
// them at once: they read a panel once.
constexpr int linear_tiles_at_once = 4;
constexpr bool takes_tiles_at_once(int rows, int most_rows) { return 3 * rows == 2 * most_rows; }
// Keys of a block of a row of attention weights. The scratch of a kernel of attention_probs is three floats of each
// key of the blocks of a row.
constexpr int probs_block = 32;

enum class Op : int32_t {
#define HEED_OP_NAME(name, cpu, cuda, ...) name,
    HEED_OPERATIONS(HEED_OP_NAME)
#undef HEED_OP_NAME
};

#define HEED_COUNT_OP(name, cpu, cuda, ...) +1
constexpr int num_operations = HEED_OPERATIONS(HEED_COUNT_OP);
#undef HEED_COUNT_OP

inline const char *op_name(Op op) {
    static constexpr const char *names[] = {
#define HEED_OP_TEXT(name, cpu, cuda, ...) #name,
        HEED_OPERATIONS(HEED_OP_TEXT)
#undef HEED_OP_TEXT
    };
    const int number = static_cast<int>(op);
    return number >= 0 && number < num_operations ? names[number] : "?";
}

// Whether kernels of the operation may have a user's score function: those that make gradients of logits.
constexpr bool may_have_score_mod(Op op, bool on_cuda) {
    if (op == Op::attention_backward) return true;
    return on_cuda && (op == Op::attention_backward_bias || op == Op::attention_backward_keys ||
                       op == Op::attention_backward_queries);
}

// What heed_add_kernels() may be asked for by OPS: an operation or a word for several, and what it brings along.
struct OpChoice {
    const char *name;
    std::initializer_list<Op> brings;
};
inline constexpr OpChoice op_choices[] = {
    {"attention_backward",
     {Op::attention_backward_bias, Op::attention_backward_keys, Op::attention_backward_keys_plain,
      Op::attention_backward_queries, Op::attention_backward_queries_plain, Op::attention_backward_repair,
      Op::attention_backward_rows, Op::attention_backward_sinks, Op::attention_backward_stats,
      Op::attention_backward_store, Op::attention_backward_words}},
    {"attention_probs", {Op::attention_products, Op::attention_scores, Op::linear_rows}},
    {"dropout_mask", {}},
    {"kv_append", {Op::rope}},
    {"kv_copy", {}},
    {"layer_gradients",
     {Op::add, Op::attention_backward, Op::clip_gradient, Op::column_sums, Op::copy_rows, Op::layer_norm_gradient,
      Op::layer_norm_sums, Op::transpose}},
    {"layer_norm", {}},
    {"layers",
     {Op::attention_probs, Op::clip, Op::dropout_mask, Op::key_padding, Op::kv_append, Op::kv_copy, Op::layer_norm,
      Op::linear, Op::merge_states, Op::rope}},
    {"linear", {Op::attention_scores, Op::linear_in_place, Op::linear_rows}},
    {"merge_states", {}},
    {"rope", {}},
};

constexpr uint64_t attention_arguments_hash = HEED_LIST_HASH(HEED_ATTENTION);

// bf16: attention_backward of CPUs in bf16 has a list of its own.
constexpr uint64_t op_arguments_hash(Op op, bool on_cuda, bool bf16) {
    if (op == Op::attention_backward && !on_cuda && bf16) return HEED_LIST_HASH(HEED_ATTENTION_BACKWARD_BF16);
    switch (op) {
#define HEED_OP_HASH(name, cpu, cuda, ...)                                                                             \
    case Op::name:                                                                                                     \
        return on_cuda ? HEED_LIST_HASH(cuda) : HEED_LIST_HASH(cpu);
        HEED_OPERATIONS(HEED_OP_HASH)
#undef HEED_OP_HASH
    }
    return 0;
}

}  // namespace heed
