#pragma once
// The arguments of operations around attention on CPUs. Each works on one block of rows: serial, without scratch;
// strides are below 2^31.
#include "generators/contract/arguments.h"

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

// One query row: q (d), k (d, slot, page), k_scale (slot, page), mask, bias, bias_16 (key), page_table (page in
// sequence). The row sees the keys in [begin, end), mask and bias apart. mode: ProbsMode. scores (key), row_max and
// row_sum are scratch. probs (key); probs_16, in dtype, is an argument unless dtype is f32.
#define HEED_ATTENTION_PROBS(INPUT, VALUE, OUTPUT)                                                                     \
    INPUT(q, own, 1)                                                                                                   \
    INPUT(k, keys, 3)                                                                                                  \
    INPUT(k_scale, f32, 2)                                                                                             \
    INPUT(mask, u8, 1)                                                                                                 \
    INPUT(bias, f32, 1)                                                                                                \
    INPUT(bias_16, u16, 1)                                                                                             \
    INPUT(page_table, i32, 1)                                                                                          \
    VALUE(kv_len, int32_t)                                                                                             \
    VALUE(kv_batch, int32_t)                                                                                           \
    VALUE(first_key, int32_t)                                                                                          \
    VALUE(page_size, int32_t)                                                                                          \
    VALUE(begin, int32_t)                                                                                              \
    VALUE(end, int32_t)                                                                                                \
    VALUE(row, int32_t)                                                                                                \
    VALUE(position_offset, int32_t)                                                                                    \
    VALUE(mode, int32_t)                                                                                               \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    VALUE(slope, float)                                                                                                \
    VALUE(sink, float)                                                                                                 \
    OUTPUT(scores, f32, 1)                                                                                             \
    OUTPUT(row_max, f32, 0)                                                                                            \
    OUTPUT(row_sum, f32, 0)                                                                                            \
    OUTPUT(probs, f32, 1)                                                                                              \
    OUTPUT(probs_16, own, 1)

// x (k, row); tiles (row of tile, k, tile), tiles of OpKernel::rows rows; rows after the last one repeat it.
#define HEED_LINEAR_ROWS(INPUT, VALUE, OUTPUT)                                                                         \
    INPUT(x, own, 2)                                                                                                   \
    OUTPUT(tiles, step, 3)

// x: tiles as linear_rows leaves them; weight (lane, k, panel), panels of OpKernel::columns columns; bias (column);
// clip: out is clamped to [-clip, clip], infinity = off, NaN stays NaN; out (column, row). Whole panels are read: of
// bias and weight too.
#define HEED_LINEAR(INPUT, VALUE, OUTPUT)                                                                              \
    INPUT(x, step, 3)                                                                                                  \
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

// The logits of a tile of gradients: OpKernel::rows queries i x OpKernel::columns keys j. lse, delta = dout . out (i);
// mask, bias as the tile of logits. form: BackwardForm; first_element, row_elements: the dropout mask's element of the
// tile's first logit, and its elements per row.
#define HEED_BACKWARD_ROWS(INPUT)                                                                                      \
    INPUT(lse, f32, 1)                                                                                                 \
    INPUT(delta, f32, 1)                                                                                               \
    INPUT(mask, u8, 2)                                                                                                 \
    INPUT(bias, f32, 2)
#define HEED_BACKWARD_VALUES(VALUE)                                                                                    \
    VALUE(first_query, int32_t)                                                                                        \
    VALUE(first_key, int32_t)                                                                                          \
    VALUE(kv_len, int32_t)                                                                                             \
    VALUE(visible_begin, int32_t)                                                                                      \
    VALUE(visible_end, int32_t)                                                                                        \
    VALUE(position_offset, int32_t)                                                                                    \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    HEED_DROPOUT_VALUES(VALUE)                                                                                         \
    VALUE(slope, float)                                                                                                \
    VALUE(first_element, uint64_t)                                                                                     \
    VALUE(row_elements, uint64_t)

// One tile of gradients in floats. q, dout, k and gradients are (element of chunk, row, chunk), backward_chunk elements
// a chunk, zeros after the last; k_lanes, v_lanes (key of chunk, d, chunk). dq_before, dk_before and dv_before may be
// dq, dk and dv. num_rows queries and num_keys keys make the sums; careful: some key or row is NaN or infinite and must
// not reach what does not see it. weights, score_grads, logit_grads (j, i). dq, dk and dv have multiples of 12 rows and
// 32 columns that hold the tile. See generators/attention/backward.h.
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
    VALUE(careful, int32_t)                                                                                            \
    VALUE(num_rows, int32_t)                                                                                           \
    VALUE(num_keys, int32_t)                                                                                           \
    HEED_BACKWARD_VALUES(VALUE)                                                                                        \
    OUTPUT(weights, f32, 2)                                                                                            \
    OUTPUT(score_grads, f32, 2)                                                                                        \
    OUTPUT(logit_grads, f32, 2)                                                                                        \
    OUTPUT(dq, f32, 3)                                                                                                 \
    OUTPUT(dk, f32, 3)                                                                                                 \
    OUTPUT(dv, f32, 3)

// The same in words of two bf16: q_words, dout_words, k_rows, v_rows (pair of elements, row); q_pairs, dout_pairs (c,
// pair of queries, chunk), k_columns (pair of keys, c, chunk). weights, score_grads and logit_grads are (i, j), dq is
// (i, c, chunk). See generators/attention/backward_tiles.h.
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
