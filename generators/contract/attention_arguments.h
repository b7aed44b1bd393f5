#pragma once
// The arguments of attention kernels: one list for every kernel, of CPUs and CUDA.
//   q, out           (d, head, token, batch); ragged queries: batch 1, all sequences end to end
//   k, v             (d, head, slot, page). Strided storage (page_size 0): a page is a sequence, or one page holds all
//                    sequences end to end; paged storage: slots of a page, found through page_table
//   k_scale, v_scale (head, slot, page), of int8 codes
//   mask, bias, bias_16  (kv, q, head, batch) with the extents max_kv_len, max_q_len, num_heads, batch, any strides;
//                    bias_16 is in the dtype of q
//   sink, alibi_slopes   (head), any stride
//   page_table       (page in sequence, sequence); on CUDA ids are clamped
//   tasks            (num_task_fields, num_tasks), TaskField: a block of row_block rows of one head each. CUDA:
//                    (num_sequence_fields, batch), SequenceField: kernels make their blocks themselves
//   split_len, num_splits  decode: split s covers the keys [s * split_len, (s + 1) * split_len), split_len a multiple
//                    of kv_block, num_splits * split_len >= max_kv_len; prefill: 0 and 1
//   uniform          CUDA, and the next three. 1: no table is read: every sequence has max_q_len queries and max_kv_len
//                    keys from its batch index's first token on, and these values of SequenceField
//   device_status    CUDA: an address for the first fault of the page table, or 0
//   states           (float, head * num_splits + split, token, batch): CUDA decode kernels of more than one split leave
//                    their results here, not in out and lse. A state is the output relative to its maximum (d), and in
//                    the last two floats the maximum in units of log2, -inf without a key, and the sum of the weights
// After them come the buffers that the kernel's score function declares, int32 (element), and then the outputs; lse is
// (d, head, token, batch) with stride 0 along d.
//
// Tensors that a problem does not use are one element with stride 0 (a sink of minus infinity). Scratch comes from
// halide_malloc and halide_free only. A kernel returns 0 or a negative Halide code.
//
// CUDA: buffers carry device addresses (halide_buffer_t::device) and no host pointer; batch strides are 0 where q, out,
// k or v have no batch dimension (ragged), and their batch extent is `batch` all the same. A tensor that a problem does
// not use, and k or v without elements, has address 0. The kernel makes one launch through halide_cuda_run, allocates
// nothing and waits for nothing. Its image holds this one kernel.
#include "generators/contract/arguments.h"

#define HEED_ATTENTION(INPUT, VALUE, OUTPUT)                                                                           \
    INPUT(q, own, 4)                                                                                                   \
    INPUT(k, keys, 4)                                                                                                  \
    INPUT(v, keys, 4)                                                                                                  \
    INPUT(k_scale, f32, 3)                                                                                             \
    INPUT(v_scale, f32, 3)                                                                                             \
    INPUT(mask, u8, 4)                                                                                                 \
    INPUT(bias, f32, 4)                                                                                                \
    INPUT(bias_16, u16, 4)                                                                                             \
    INPUT(sink, f32, 1)                                                                                                \
    INPUT(alibi_slopes, f32, 1)                                                                                        \
    INPUT(page_table, i32, 2)                                                                                          \
    INPUT(tasks, i32, 2)                                                                                               \
    VALUE(batch, int32_t)                                                                                              \
    VALUE(max_q_len, int32_t)                                                                                          \
    VALUE(max_kv_len, int32_t)                                                                                         \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    HEED_DROPOUT_VALUES(VALUE)                                                                                         \
    VALUE(split_len, int32_t)                                                                                          \
    VALUE(num_splits, int32_t)                                                                                         \
    VALUE(page_size, int32_t)                                                                                          \
    VALUE(uniform, int32_t)                                                                                            \
    VALUE(visible_begin, int32_t)                                                                                      \
    VALUE(visible_end, int32_t)                                                                                        \
    VALUE(position_offset, int32_t)                                                                                    \
    VALUE(device_status, uint64_t)                                                                                     \
    INPUT(states, f32, 4)                                                                                              \
    OUTPUT(out, own, 4)                                                                                                \
    OUTPUT(lse, f32, 4)
