#pragma once
// The arguments of operations on CUDA, each one launch. Addresses are of device memory; strides are in bytes unless
// said. `named` is an output of one byte that only names the device: the kernel writes to addresses it was given.
// wide: 1 when addresses, strides and lengths allow 16 bytes at a time.
#include "generators/contract/arguments.h"
#include "generators/contract/fields.h"

namespace heed {

using MetadataWords = Words<num_metadata_words / 8, 4>;             // two words of 32 bits each, low half first
using MoveSegments = Words<num_move_segments, move_segment_words>;  // addresses of its first token in source,
                                                                    // destination and scales; tokens | table row << 32
using MergeStates = Words<max_merge_states, merge_state_words>;     // addresses of out and lse

}  // namespace heed

// Metadata of the host goes to the device as parameters of a launch: num_words words of 32 bits, an even number, to an
// address.
#define HEED_CUDA_WRITE_METADATA(INPUT, VALUE, OUTPUT)                                                                 \
    VALUE(word, MetadataWords)                                                                                         \
    VALUE(num_words, int32_t)                                                                                          \
    VALUE(to, uint64_t)                                                                                                \
    OUTPUT(named, u8, 1)

// From lengths, prefix sums and offsets on the device, int32 arrays or 0, to the table (SequenceField, sequence).
// position: heed_position; status: an address or 0. Whatever the values are, what is written stays inside of the table,
// and what it says inside of the tensors; a value that is not allowed sets status, if that is 0, to sequence * 8 + 1
// (cu_seqlens_q), 2 (cu_seqlens_kv) or 3 (kv_lens).
#define HEED_CUDA_SEQUENCES(INPUT, VALUE, OUTPUT)                                                                      \
    VALUE(batch, int32_t)                                                                                              \
    VALUE(max_q_len, int32_t)                                                                                          \
    VALUE(max_kv_len, int32_t)                                                                                         \
    VALUE(total_q, int32_t)                                                                                            \
    VALUE(total_kv, int32_t)                                                                                           \
    VALUE(position, int32_t)                                                                                           \
    VALUE(causal, int32_t)                                                                                             \
    VALUE(window_left, int32_t)                                                                                        \
    VALUE(window_right, int32_t)                                                                                       \
    VALUE(cu_seqlens_q, uint64_t)                                                                                      \
    VALUE(cu_seqlens_kv, uint64_t)                                                                                     \
    VALUE(kv_lens, uint64_t)                                                                                           \
    VALUE(q_offsets, uint64_t)                                                                                         \
    VALUE(status, uint64_t)                                                                                            \
    VALUE(table, uint64_t)                                                                                             \
    OUTPUT(named, u8, 1)

// rope, kv_append, kv_copy: up to num_move_segments runs of tokens, the longest of max_tokens. The first 2 * num_pairs
// elements of a row are rotated by the tables cos and sin f32 (pair, table row); direction 1, or -1 to rotate back.
// kv_copy moves bytes.
#define HEED_CUDA_MOVE_TOKENS(INPUT, VALUE, OUTPUT)                                                                    \
    VALUE(word, MoveSegments)                                                                                          \
    VALUE(segments, int32_t)                                                                                           \
    VALUE(max_tokens, int32_t)                                                                                         \
    VALUE(num_heads, int32_t)                                                                                          \
    VALUE(row_length, int32_t)                                                                                         \
    VALUE(num_pairs, int32_t)                                                                                          \
    VALUE(interleaved, int32_t)                                                                                        \
    VALUE(wide, int32_t)                                                                                               \
    VALUE(direction, float)                                                                                            \
    VALUE(from_token, uint64_t)                                                                                        \
    VALUE(from_head, uint64_t)                                                                                         \
    VALUE(to_token, uint64_t)                                                                                          \
    VALUE(to_head, uint64_t)                                                                                           \
    VALUE(cos, uint64_t)                                                                                               \
    VALUE(sin, uint64_t)                                                                                               \
    OUTPUT(named, u8, 1)

// from_*: strides of the states' outs, to_*: of out; lse and sink may be 0.
#define HEED_CUDA_MERGE_STATES(INPUT, VALUE, OUTPUT)                                                                   \
    VALUE(word, MergeStates)                                                                                           \
    VALUE(num_states, int32_t)                                                                                         \
    VALUE(num_rows, int32_t)                                                                                           \
    VALUE(q_len, int32_t)                                                                                              \
    VALUE(num_heads, int32_t)                                                                                          \
    VALUE(head_dim, int32_t)                                                                                           \
    VALUE(wide, int32_t)                                                                                               \
    VALUE(from_batch, uint64_t)                                                                                        \
    VALUE(from_token, uint64_t)                                                                                        \
    VALUE(from_head, uint64_t)                                                                                         \
    VALUE(to_batch, uint64_t)                                                                                          \
    VALUE(to_token, uint64_t)                                                                                          \
    VALUE(to_head, uint64_t)                                                                                           \
    VALUE(out, uint64_t)                                                                                               \
    VALUE(lse, uint64_t)                                                                                               \
    VALUE(sink, uint64_t)                                                                                              \
    OUTPUT(named, u8, 1)

// The results of a decode kernel of several splits, as states of HEED_ATTENTION: f32 (float, split, row) of
// state_floats floats, row = (sequence * tokens + token) * num_heads + head. lse_*, out_*: strides; sink may be 0.
#define HEED_CUDA_MERGE_SPLITS(INPUT, VALUE, OUTPUT)                                                                   \
    VALUE(num_splits, int32_t)                                                                                         \
    VALUE(state_floats, int32_t)                                                                                       \
    VALUE(rows, int32_t)                                                                                               \
    VALUE(tokens, int32_t)                                                                                             \
    VALUE(num_heads, int32_t)                                                                                          \
    VALUE(head_dim, int32_t)                                                                                           \
    VALUE(states, uint64_t)                                                                                            \
    VALUE(sink, uint64_t)                                                                                              \
    VALUE(out, uint64_t)                                                                                               \
    VALUE(out_batch, uint64_t)                                                                                         \
    VALUE(out_token, uint64_t)                                                                                         \
    VALUE(out_head, uint64_t)                                                                                          \
    VALUE(lse, uint64_t)                                                                                               \
    VALUE(lse_batch, uint64_t)                                                                                         \
    VALUE(lse_token, uint64_t)                                                                                         \
    VALUE(lse_head, uint64_t)                                                                                          \
    OUTPUT(named, u8, 1)

// A piece of the output, `columns` columns from first_column on; bias_first may be 0. out_is_f32: out is f32 rather
// than in the type of x.
#define HEED_CUDA_LINEAR(INPUT, VALUE, OUTPUT)                                                                         \
    VALUE(num_rows, int32_t)                                                                                           \
    VALUE(len, int32_t)                                                                                                \
    VALUE(dim_in, int32_t)                                                                                             \
    VALUE(first_column, int32_t)                                                                                       \
    VALUE(columns, int32_t)                                                                                            \
    VALUE(head_dim, int32_t)                                                                                           \
    VALUE(out_is_f32, int32_t)                                                                                         \
    VALUE(x_first, uint64_t)                                                                                           \
    VALUE(x_batch, uint64_t)                                                                                           \
    VALUE(x_token, uint64_t)                                                                                           \
    VALUE(weight_first, uint64_t)                                                                                      \
    VALUE(weight_row, uint64_t)                                                                                        \
    VALUE(bias_first, uint64_t)                                                                                        \
    VALUE(out_first, uint64_t)                                                                                         \
    VALUE(out_batch, uint64_t)                                                                                         \
    VALUE(out_token, uint64_t)                                                                                         \
    VALUE(out_head, uint64_t)                                                                                          \
    OUTPUT(named, u8, 1)

// Addresses and strides of the tensors that scores are made of (set_scores() of runtime/cuda/call.h).
#define HEED_QUERY_AND_KEY_VALUES(VALUE)                                                                               \
    VALUE(q, uint64_t)                                                                                                 \
    VALUE(q_batch, uint64_t)                                                                                           \
    VALUE(q_token, uint64_t)                                                                                           \
    VALUE(q_head, uint64_t)                                                                                            \
    VALUE(k, uint64_t)                                                                                                 \
    VALUE(k_batch, uint64_t)                                                                                           \
    VALUE(k_token, uint64_t)                                                                                           \
    VALUE(k_head, uint64_t)

#define HEED_MASK_AND_BIAS_VALUES(VALUE)                                                                               \
    VALUE(mask, uint64_t)                                                                                              \
    VALUE(mask_batch, uint64_t)                                                                                        \
    VALUE(mask_head, uint64_t)                                                                                         \
    VALUE(mask_row, uint64_t)                                                                                          \
    VALUE(mask_key, uint64_t)                                                                                          \
    VALUE(bias, uint64_t)                                                                                              \
    VALUE(bias_batch, uint64_t)                                                                                        \
    VALUE(bias_head, uint64_t)                                                                                         \
    VALUE(bias_row, uint64_t)                                                                                          \
    VALUE(bias_key, uint64_t)

// `sequences` sequences from first_sequence on; tensors and strides as in HEED_ATTENTION; page_size 0: keys are not in
// pages. tasks: the table of sequences, or 0 where each has uniform_q_len queries, max_kv_len keys and the next three.
// mode: ProbsMode; as_f32: the result is f32 rather than in the type of q; sink, alibi_slopes, device_status: an
// address or 0.
#define HEED_CUDA_ATTENTION_PROBS(INPUT, VALUE, OUTPUT)                                                                \
    VALUE(sequences, int32_t)                                                                                          \
    VALUE(first_sequence, int32_t)                                                                                     \
    VALUE(num_heads, int32_t)                                                                                          \
    VALUE(num_kv_heads, int32_t)                                                                                       \
    VALUE(head_dim, int32_t)                                                                                           \
    VALUE(max_q_len, int32_t)                                                                                          \
    VALUE(max_kv_len, int32_t)                                                                                         \
    VALUE(page_size, int32_t)                                                                                          \
    VALUE(table_pages, int32_t)                                                                                        \
    VALUE(num_pages, int32_t)                                                                                          \
    VALUE(uniform_q_len, int32_t)                                                                                      \
    VALUE(visible_begin, int32_t)                                                                                      \
    VALUE(visible_end, int32_t)                                                                                        \
    VALUE(position_offset, int32_t)                                                                                    \
    VALUE(mode, int32_t)                                                                                               \
    VALUE(as_f32, int32_t)                                                                                             \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    VALUE(tasks, uint64_t)                                                                                             \
    HEED_QUERY_AND_KEY_VALUES(VALUE)                                                                                   \
    VALUE(k_scale, uint64_t)                                                                                           \
    VALUE(k_scale_batch, uint64_t)                                                                                     \
    VALUE(k_scale_token, uint64_t)                                                                                     \
    VALUE(k_scale_head, uint64_t)                                                                                      \
    VALUE(page_table, uint64_t)                                                                                        \
    VALUE(page_table_row, uint64_t)                                                                                    \
    HEED_MASK_AND_BIAS_VALUES(VALUE)                                                                                   \
    VALUE(sink, uint64_t)                                                                                              \
    VALUE(sink_head, uint64_t)                                                                                         \
    VALUE(alibi_slopes, uint64_t)                                                                                      \
    VALUE(slope_head, uint64_t)                                                                                        \
    VALUE(device_status, uint64_t)                                                                                     \
    VALUE(out, uint64_t)                                                                                               \
    VALUE(out_batch, uint64_t)                                                                                         \
    VALUE(out_head, uint64_t)                                                                                          \
    VALUE(out_row, uint64_t)                                                                                           \
    OUTPUT(named, u8, 1)

// What gradients of attention know of rows beforehand: stats f32 (2, row, head, sequence), lse in log2 and delta =
// dout . out, of stat_rows rows a head. out_*: strides of out and dout; tasks: the table of sequences, or 0 where all
// have max_q_len queries.
#define HEED_CUDA_BACKWARD_STATS(INPUT, VALUE, OUTPUT)                                                                 \
    VALUE(batch, int32_t)                                                                                              \
    VALUE(num_heads, int32_t)                                                                                          \
    VALUE(head_dim, int32_t)                                                                                           \
    VALUE(max_q_len, int32_t)                                                                                          \
    VALUE(stat_rows, int32_t)                                                                                          \
    VALUE(out, uint64_t)                                                                                               \
    VALUE(dout, uint64_t)                                                                                              \
    VALUE(out_batch, uint64_t)                                                                                         \
    VALUE(out_token, uint64_t)                                                                                         \
    VALUE(out_head, uint64_t)                                                                                          \
    VALUE(lse, uint64_t)                                                                                               \
    VALUE(lse_batch, uint64_t)                                                                                         \
    VALUE(lse_token, uint64_t)                                                                                         \
    VALUE(lse_head, uint64_t)                                                                                          \
    VALUE(tasks, uint64_t)                                                                                             \
    VALUE(stats, uint64_t)                                                                                             \
    OUTPUT(named, u8, 1)

// dsink f32 (head), of sink f32 (head).
#define HEED_CUDA_BACKWARD_SINKS(INPUT, VALUE, OUTPUT)                                                                 \
    VALUE(batch, int32_t)                                                                                              \
    VALUE(num_heads, int32_t)                                                                                          \
    VALUE(stat_rows, int32_t)                                                                                          \
    VALUE(stats, uint64_t)                                                                                             \
    VALUE(sink, uint64_t)                                                                                              \
    VALUE(dsink, uint64_t)                                                                                             \
    OUTPUT(named, u8, 1)

// Buffers of a score function, of words of 32 bits: addresses and numbers of words.
#define HEED_SCORE_BUFFER_VALUES(VALUE)                                                                                \
    VALUE(score_buffer_0, uint64_t)                                                                                    \
    VALUE(score_buffer_1, uint64_t)                                                                                    \
    VALUE(score_buffer_2, uint64_t)                                                                                    \
    VALUE(score_buffer_3, uint64_t)                                                                                    \
    VALUE(score_size_0, int32_t)                                                                                       \
    VALUE(score_size_1, int32_t)                                                                                       \
    VALUE(score_size_2, int32_t)                                                                                       \
    VALUE(score_size_3, int32_t)

// What gradients of logits are made of: tensors as in HEED_CUDA_ATTENTION_PROBS; stats: as above. The buffers are read
// by kernels with a score function.
#define HEED_LOGIT_GRADIENT_VALUES(VALUE)                                                                              \
    VALUE(batch, int32_t)                                                                                              \
    VALUE(num_heads, int32_t)                                                                                          \
    VALUE(num_kv_heads, int32_t)                                                                                       \
    VALUE(head_dim, int32_t)                                                                                           \
    VALUE(head_dim_v, int32_t)                                                                                         \
    VALUE(max_q_len, int32_t)                                                                                          \
    VALUE(max_kv_len, int32_t)                                                                                         \
    VALUE(uniform_q_len, int32_t)                                                                                      \
    VALUE(visible_begin, int32_t)                                                                                      \
    VALUE(visible_end, int32_t)                                                                                        \
    VALUE(position_offset, int32_t)                                                                                    \
    VALUE(stat_rows, int32_t)                                                                                          \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    HEED_DROPOUT_VALUES(VALUE)                                                                                         \
    VALUE(tasks, uint64_t)                                                                                             \
    HEED_QUERY_AND_KEY_VALUES(VALUE)                                                                                   \
    VALUE(v, uint64_t)                                                                                                 \
    VALUE(v_batch, uint64_t)                                                                                           \
    VALUE(v_token, uint64_t)                                                                                           \
    VALUE(v_head, uint64_t)                                                                                            \
    VALUE(dout, uint64_t)                                                                                              \
    VALUE(dout_batch, uint64_t)                                                                                        \
    VALUE(dout_token, uint64_t)                                                                                        \
    VALUE(dout_head, uint64_t)                                                                                         \
    HEED_MASK_AND_BIAS_VALUES(VALUE)                                                                                   \
    VALUE(alibi_slopes, uint64_t)                                                                                      \
    VALUE(slope_head, uint64_t)                                                                                        \
    HEED_SCORE_BUFFER_VALUES(VALUE)                                                                                    \
    VALUE(stats, uint64_t)

// dbias has the bias' type, strides, and extent 1 along the axes that share it.
#define HEED_CUDA_BACKWARD_BIAS(INPUT, VALUE, OUTPUT)                                                                  \
    HEED_LOGIT_GRADIENT_VALUES(VALUE)                                                                                  \
    VALUE(dbias_batch, int32_t)                                                                                        \
    VALUE(dbias_heads, int32_t)                                                                                        \
    VALUE(dbias_rows, int32_t)                                                                                         \
    VALUE(dbias_keys, int32_t)                                                                                         \
    VALUE(dbias, uint64_t)                                                                                             \
    OUTPUT(named, u8, 1)

// attention_backward; attention_backward_keys, which makes dk and dv, and _queries, which makes dq, each with a kernel
// `plain` for calls in which nothing but the scale changes logits (OpKernel::columns: the largest head dim). dq, dk,
// dv: addresses or 0, of rows as those of q, k and v; all_keys: not 0: keys after a sequence's last, up to max_kv_len,
// get zeros.
#define HEED_CUDA_BACKWARD_SUMS(INPUT, VALUE, OUTPUT)                                                                  \
    HEED_LOGIT_GRADIENT_VALUES(VALUE)                                                                                  \
    VALUE(all_keys, int32_t)                                                                                           \
    VALUE(dq, uint64_t)                                                                                                \
    VALUE(dk, uint64_t)                                                                                                \
    VALUE(dv, uint64_t)                                                                                                \
    OUTPUT(named, u8, 1)
