#pragma once
// The arguments of attention kernels: one list for every kernel, of CPUs and CUDA.
//   q, out           (d, head, token, batch); ragged queries: batch 1, all sequences end to end
//   k, v             (d, head, slot, page). Strided storage (page_size 0): a page is a sequence, or one page holds all
//                    sequences end to end; paged storage: slots of a page, found through page_table
//   k_scale, v_scale (head, slot, page), of int8 codes
//   mask, bias, bias_16  (kv, q, head, batch) with the extents max_kv_len, max_q_len, num_heads, batch, any strides;
//                    bias_16 is in the dtype of q
//   sink, HEED_HEAD_INPUTS   (head), any stride
//   page_table       (page in sequence, sequence); on CUDA ids are clamped
//   tasks            (num_task_fields, num_tasks), TaskField: blocks of row_block rows. CUDA:
//                    (num_sequence_fields, batch), SequenceField: kernels make their blocks themselves
//   key_blocks       (num_key_block_fields, num_key_blocks), KeyBlockField: what a kernel that packs k and v (registry:
//                    packed_bytes) packs for the tasks; others: one element
//   swept_tasks      (line), of prefill kernels with mask or bias: a task of each block of rows of these tensors. Heads
//                    that share mask and bias share a line; without mask and bias there is one. Others: one element
//   split_len, num_splits  decode: split s covers the keys [s * split_len, (s + 1) * split_len), split_len a multiple
//                    of kv_block, num_splits * split_len >= max_kv_len; prefill: 0 and 1
//   blocks_per_task  decode: the most task_num_blocks; prefill: 1
//   wants_lse        0 or 1; 0: lse may hold anything
//   uniform          CUDA, and the next three. 1: no table is read: every sequence has max_q_len queries and max_kv_len
//                    keys from its batch index's first token on, and these values of SequenceField
//   k_head_stride .. CPU: HEED_WIDE_STRIDES; the buffers' own are up to 2^31-1, their strides are not read
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

// (argument, input, dimension): strides of more than 32 bits, in elements.
#define HEED_WIDE_STRIDES(STRIDE)                                                                                      \
    STRIDE(k_head_stride, k, 1)                                                                                        \
    STRIDE(k_slot_stride, k, 2)                                                                                        \
    STRIDE(k_page_stride, k, 3)                                                                                        \
    STRIDE(v_head_stride, v, 1)                                                                                        \
    STRIDE(v_slot_stride, v, 2)                                                                                        \
    STRIDE(v_page_stride, v, 3)                                                                                        \
    STRIDE(k_scale_page_stride, k_scale, 2)                                                                            \
    STRIDE(v_scale_page_stride, v_scale, 2)

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
    HEED_HEAD_INPUTS(INPUT)                                                                                            \
    INPUT(page_table, i32, 2)                                                                                          \
    INPUT(tasks, i32, 2)                                                                                               \
    INPUT(key_blocks, i32, 2)                                                                                          \
    INPUT(swept_tasks, i32, 1)                                                                                         \
    VALUE(batch, int32_t)                                                                                              \
    VALUE(max_q_len, int32_t)                                                                                          \
    VALUE(max_kv_len, int32_t)                                                                                         \
    HEED_LOGIT_VALUES(VALUE)                                                                                           \
    HEED_DROPOUT_VALUES(VALUE)                                                                                         \
    VALUE(split_len, int32_t)                                                                                          \
    VALUE(num_splits, int32_t)                                                                                         \
    VALUE(blocks_per_task, int32_t)                                                                                    \
    VALUE(page_size, int32_t)                                                                                          \
    VALUE(k_head_stride, uint64_t)                                                                                     \
    VALUE(k_slot_stride, uint64_t)                                                                                     \
    VALUE(k_page_stride, uint64_t)                                                                                     \
    VALUE(v_head_stride, uint64_t)                                                                                     \
    VALUE(v_slot_stride, uint64_t)                                                                                     \
    VALUE(v_page_stride, uint64_t)                                                                                     \
    VALUE(k_scale_page_stride, uint64_t)                                                                               \
    VALUE(v_scale_page_stride, uint64_t)                                                                               \
    VALUE(wants_lse, uint8_t)                                                                                          \
    VALUE(uniform, int32_t)                                                                                            \
    VALUE(visible_begin, int32_t)                                                                                      \
    VALUE(visible_end, int32_t)                                                                                        \
    VALUE(position_offset, int32_t)                                                                                    \
    VALUE(device_status, uint64_t)                                                                                     \
    INPUT(states, f32, 4)                                                                                              \
    OUTPUT(out, own, 4)                                                                                                \
    OUTPUT(lse, f32, 4)
