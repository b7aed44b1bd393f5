// The contract between generated kernels and the runtime: one Kernel per row of the table, all called alike.
//
// `call` is Halide's argv form: args[i] points to argument i; for a buffer args[i] IS the halide_buffer_t *.
// Every attention row takes the same arguments in the same order (enum Argument). Buffers list dimensions innermost
// first, reversed against the API's index order; all mins are 0, innermost strides 1, extent-1 strides canonical:
//   q, out           (d, head, token, batch); ragged queries: batch 1, all sequences end to end
//   k, v             (d, head, slot, page). Strided storage (page_size 0): a page is a sequence, or one page holds all
//                    sequences end to end; paged storage: slots of a page, found through page_table
//   k_scale, v_scale f32 (head, slot, page), of int8 codes
//   mask, bias       (kv, q, head, batch) with the extents max_kv_len, max_q_len, num_heads, batch
//   sink, slopes     f32 (head)
//   page_table       int32 (page in sequence, sequence); on CUDA ids are clamped
//   tasks            int32 (num_task_fields, num_tasks), enum TaskField: a block of row_block rows of one head each.
//                    CUDA rows: int32 (num_sequence_fields, batch), enum SequenceField: they make their blocks
//                    themselves
//   lse              f32 (d, head, token, batch), stride 0 along d, always present
//   score buffers    int32 (element): bits of those that the row's score_mod declares, before out
//   states           f32 (float, head * num_splits + split, token, batch): CUDA decode rows of more than one split
//                    leave their results here, not in out and lse. A state is the output relative to its maximum (d),
//                    and in the last two floats the maximum in units of log2, -inf without a key, and the sum of the
//                    weights
// Tensors that a problem does not use are one element with stride 0 (a sink of minus infinity).
// Scratch comes from halide_malloc/halide_free only. Returns 0 or a negative Halide code.
//
// CUDA rows: buffers carry device addresses (halide_buffer_t::device) and no host pointer; batch strides are 0 where q,
// out, k or v have no batch dimension (ragged), and their batch extent is `batch` all the same. A tensor that a problem
// does not use, and k or v without elements, has address 0. The row launches one kernel through halide_cuda_run,
// allocates nothing and waits for nothing. Its image holds this one kernel.
//
// A row whose storage is `contiguous` serves strided storage, contiguous and varlen; one whose storage is `paged`
// serves all.
#pragma once

#include <cstdint>

#include "heed/heed.h"

namespace heed {

enum class Phase : int32_t { prefill = HEED_PREFILL, decode = HEED_DECODE };

// In order of preference: a later one is faster where the CPU or GPU has it. x86_64 means SSE4.1; sm75 and sm80 are
// CUDA compute capabilities.
enum class Isa : int32_t {
    x86_64 = HEED_X86_64,
    avx2 = HEED_AVX2,
    avx512 = HEED_AVX512,
    avx512bf16 = HEED_AVX512_BF16,
    amx = HEED_AMX,
    sm75 = HEED_SM75,
    sm80 = HEED_SM80
};

constexpr bool is_cuda(Isa isa) { return isa == Isa::sm75 || isa == Isa::sm80; }

// The plain tokens of generated table lines: HEED_KERNEL(name, prefill, f32, f32, 64, 64, 0, contiguous, avx2, ...).
namespace token {
constexpr heed_dtype f32 = HEED_F32, f16 = HEED_F16, bf16 = HEED_BF16, i8 = HEED_I8, u8 = HEED_U8, i32 = HEED_I32;
constexpr heed_kv_storage contiguous = HEED_KV_CONTIGUOUS, varlen = HEED_KV_VARLEN, paged = HEED_KV_PAGED;
}  // namespace token

// What a row can serve beyond the plain problem; it serves problems without these too. gqa: a decode row that works on
// several rows (heads of a group, positions) at once; it serves any group, and so does a row without it.
enum Feature : uint32_t {
    feature_bias = HEED_FEATURE_BIAS,
    feature_mask = HEED_FEATURE_MASK,
    feature_gqa = HEED_FEATURE_GQA,
    feature_softcap = HEED_FEATURE_SOFTCAP,
    feature_alibi = HEED_FEATURE_ALIBI,
    feature_dropout = HEED_FEATURE_DROPOUT
};

enum Argument {
    arg_user_context,
    arg_q,
    arg_k,
    arg_v,
    arg_k_scale,
    arg_v_scale,
    arg_mask,     // uint8
    arg_bias,     // f32
    arg_bias_16,  // in the dtype of q
    arg_sink,
    arg_alibi_slopes,
    arg_page_table,
    arg_tasks,
    arg_batch,  // int32, and the next two
    arg_max_q_len,
    arg_max_kv_len,
    arg_scale,            // float; the kernel folds log2(e)
    arg_softcap,          // float; 0 = off, else such that softcap and its multiple by log2(e) are normal numbers
    arg_split_len,        // int32; decode: split s covers the keys [s * split_len, (s + 1) * split_len), a multiple of
                          // kv_block; 0 for prefill rows
    arg_num_splits,       // int32; num_splits * split_len >= max_kv_len; 1 for prefill rows
    arg_page_size,        // int32; 0 = strided storage
    arg_mask_form,        // int32, MaskForm
    arg_bias_form,        // int32, BiasForm
    arg_alibi_symmetric,  // uint8, 0 or 1
    arg_dropout_seed,     // uint64, and the next two
    arg_dropout_offset,
    arg_dropout_threshold,  // an element is dropped when its word of 32 bits is below
    arg_dropout_scale,      // float: 1 / (1 - p), 0 for p = 1
    arg_uniform,            // int32, and the next three; CUDA rows only. 1: no table is read: every sequence has
                            // max_q_len queries and max_kv_len keys from its batch index's first token on, and
    arg_visible_begin,      // these values of SequenceField
    arg_visible_end,
    arg_position_offset,
    arg_device_status,  // uint64; CUDA rows only: an address for the first fault of the page table, or 0
    arg_states,         // f32; CUDA decode rows with more than one split only
    arg_out,
    arg_lse,
    num_arguments
};

// Any non-zero element of a mask is true.
enum MaskForm : int32_t { no_mask, mask_true_attends, mask_true_hides };
enum BiasForm : int32_t { no_bias, bias_of_f32, bias_of_dtype };

// Row i of a sequence sees the keys j in [max(0, i + visible_begin), min(kv_len, i + visible_end)) and stands at
// position i + position_offset. visible_end is at least -q_len.
enum TaskField {
    task_sequence,
    task_head,  // prefill: query head; decode: first query head of the group
    task_kv_head,
    task_first_row,  // prefill: query position in the sequence; decode: position * group_size + head of the group
    task_q_len,
    task_q_batch,  // batch index and first token of the sequence in q and out
    task_first_q,
    task_kv_len,
    task_kv_batch,  // strided storage: page and first slot of the sequence
    task_first_key,
    task_visible_begin,
    task_visible_end,
    task_position_offset,
    num_task_fields
};

// CUDA rows: one sequence. The same meaning as in TaskField.
enum SequenceField {
    sequence_q_len,
    sequence_first_q,
    sequence_kv_len,
    sequence_first_key,
    sequence_visible_begin,
    sequence_visible_end,
    sequence_position_offset,
    sequence_padding,  // 8 fields: one 32-byte sector
    num_sequence_fields
};

constexpr int32_t max_cuda_head_dim = 256;
constexpr int max_score_buffers = HEED_MAX_SCORE_BUFFERS;

struct Kernel {
    const char *name;
    Phase phase;
    heed_dtype dtype, kv_dtype;
    int32_t head_dim, head_dim_v;  // 0 = any, up to 640, on CUDA up to max_cuda_head_dim
    uint32_t features;             // Feature bits; a row with features serves problems without them too
    heed_kv_storage kv_storage;    // contiguous or paged
    Isa isa;
    int32_t row_block, kv_block;
    int64_t scratch_per_thread;  // halide_malloc bytes of one task at most; -1: unbounded, the heap serves (test rows)
    const char *schedule;
    int (*call)(void **args);
    int64_t code_bytes = 0;
    const char *score_mod = "";      // name of the user's score function, which each logit of the row passes
    const char *score_buffers = "";  // of the buffers that it reads, one letter each: f (f32) or i (int32)
};

// Operations around attention, on one block of rows: serial, without scratch. Buffers list dimensions innermost first,
// all mins are 0, strides are below 2^31. Inputs, scalars, then outputs, behind the user context:
//   rope          x (pair, part, head, token), cos, sin f32 (pair, table row), positions int32 (token),
//                 position_step int32, direction float (1, or -1 to rotate back); out as x. Pair strides (1, pairs) or
//                 (2, 1). Token t reads the table row positions[t] + position_step * t. out may be x.
//   kv_append     x (d, head, token); codes int8 (d, head, token), scale f32 (head, token)
//   merge_states  x (d, row, state), lse f32 (row, state), sink f32 (row); scratch outputs row_max f32 (row),
//                 row_sum f32 (row), weights f32 (row, state); lse f32 (row), out (d, row)
//   dropout_mask  seed, offset, first, row_length, threshold uint64; keep uint8 (j, i): element (j, i) is element
//                 first + i * row_length + j of the mask
//   attention_probs  one query row: q (d), k (d, slot, page), k_scale f32 (slot, page), mask uint8, bias f32, bias_16
//                 (key), page_table (page in sequence); kv_len, kv_batch, first_key, page_size, visible begin, end,
//                 row i, position offset, mode, MaskForm, BiasForm, alibi_symmetric int32; scale, softcap, slope, sink
//                 float; scratch outputs scores f32 (key), row_max, row_sum f32 (); probs f32 (key), and unless dtype
//                 is f32 the same in dtype
//   attention_backward  one tile of gradients, rows queries x columns keys (OpKernel), all f32 but the mask: q (d, i),
//                 dout (d, i), k (d, j), k and v transposed (j of 32, d, chunk of j), lse (i), delta (i), mask uint8
//                 (j, i), bias (j, i), dq, dk, dv as they are; BackwardForm, careful, queries and keys of the tile,
//                 first query, first key, kv_len, visible begin, end, position offset, MaskForm, has_bias,
//                 alibi_symmetric int32; scale, softcap, slope, dropout scale float; dropout seed, offset, threshold,
//                 element of the first logit, elements of a row uint64; outputs weights, score_grads, logit_grads
//                 (j, i); dq, dk, dv, which may be the ones above: multiples of 12 rows and 32 columns that hold the
//                 tile. Rows are dense, d a multiple of two vectors of any row, 32. See
//                 generators/attention_backward.h; in bf16 the operands are words of two, and no `careful` and no
//                 extents: attention_backward_tiles.h
//   linear_rows   x (k, row); tiles f32 (row of tile, k, tile), tiles of OpKernel::rows rows; rows behind the last one
//                 repeat it
//   linear        tiles, weight (lane, k, panel), panels of OpKernel::columns columns, bias f32 (column), clip float
//                 (infinity = off); out (column, row). Whole panels are read: of bias and weight too.
//   put_words     CUDA: num_put_words / 2 scalars uint64, each two words, low half first; out int32 (word), of any
//                 extent up to num_put_words: metadata of the host goes to the device as parameters of a launch
//   sequences     CUDA: metadata on the device to the table of SequenceField, see generators/cuda/metadata_ops.h
//   CUDA rope, kv_append, kv_copy  a launch for up to num_move_segments runs of tokens: move_segment_words uint64 of
//                 each, addresses of its first token in source, destination and scales, and tokens | table row << 32;
//                 int32 runs, tokens of the longest, heads, elements of a row, pairs to rotate, interleaved, wide (16
//                 bytes at a time); direction float as above; uint64 strides in bytes (token and head of the source, of
//                 the destination), addresses of cos and sin; an output uint8 (1) that only names the device. kv_copy
//                 moves bytes.
//   CUDA merge_states  a launch: merge_state_words uint64 for max_merge_states states, addresses of out and lse; int32
//                 states, rows, q_len, heads, head_dim, wide; uint64 strides in bytes (batch, token and head of outs,
//                 of out), addresses of out, lse, sink (the last two may be 0); an output uint8 (1), as above
//   CUDA linear   a launch for a piece of the output: int32 rows, len, dim_in, first column, columns, head_dim; uint64
//                 addresses and strides in bytes: x (batch, token), weight (row), bias or 0, out (batch, token, head);
//                 an output uint8 (1), as above
//   CUDA attention_probs  a launch for a range of sequences: q, k, k_scale, mask, bias, bias_16, sink, slopes,
//                 page_table, tasks as in attention rows; int32 sequences, first one, max_q_len, max_kv_len, page_size,
//                 uniform and q_len, visible begin, end and position offset of every sequence then, mode, MaskForm,
//                 BiasForm, alibi_symmetric, f32 result; scale, softcap float; uint64 device_status, address of the
//                 result, its strides in bytes (batch, head, row); an output uint8 (1), as above
//   CUDA attention_backward and attention_backward_*  launches with the same arguments: q, k, v, out, lse, dout, mask,
//                 bias, bias_16, sink, slopes, tasks as in attention rows, dq, dk, dv, and dbias of extent 1 along the
//                 axes that share it; int32 batch, max_q_len, max_kv_len, uniform, visible begin, end and position
//                 offset of every sequence then, MaskForm, BiasForm, alibi_symmetric, BackwardSide, all_keys (zeros for
//                 keys behind a sequence's last), rows of stats; scale, softcap, dropout
//                 scale float; dropout seed, offset, threshold, addresses of stats f32 (2: lse in log2 and delta, row,
//                 head, sequence), of dsink uint64;
//                 an output uint8 (1), as above. _stats writes stats, which the others read, _bias dbias, _sinks
//                 dsink, the first dk and dv or dq. See
//                 generators/cuda/backward_inputs.h. On tensor cores dk and dv are the business of _keys, dq that of
//                 _queries (OpKernel::columns: the largest head dim)
//   merge_splits  CUDA: states, sink f32 (head), num_splits int32; out, lse: the results of a decode row of splits
//   layer_norm    x (d, row), weight, bias f32 (d), epsilon float; scratch outputs mean, factor f32 (row); out as x
//                 or x itself
//   CUDA layer_norm  in place: int32 rows, elements of a row, wide; epsilon float; uint64 addresses of x, weight f32,
//                 bias f32; an output uint8 (1), as above
//   clip          CUDA, in place: int32 elements, wide; limit float; uint64 address; an output uint8 (1), as above
//   key_padding   CUDA: int32 lines, heads, rows, keys (line = (sequence * heads + head) * rows + row), true hides, f32
//                 result; uint64 addresses of the padding uint8 (key, sequence) and of a mask or 0, the mask's strides
//                 (batch, head, row, key), address of the result (key, line): uint8 as the mask, or f32 0 and minus
//                 infinity; an output uint8 (1), as above
//   Gradients of layers, CUDA alone, each with an output uint8 (1), as above. Matrices are (column, row).
//   add           int32 rows, columns, row block, column block, from_placed, f32 source, f32 destination; uint64 outer
//                 and inner stride of rows, of columns, addresses of source and destination. Adds element (row, column)
//                 to number row / block * outer + row % block * inner + the same of the column; the source is packed,
//                 or placed alike
//   clip_gradient int32 elements, wide; limit float; uint64 addresses of what was clipped and of its gradient, which
//                 becomes 0 from the limit on
//   column_sums   int32 rows, columns, rows of a slice, adds, f32 source, f32 destination; uint64 row stride of the
//                 source, addresses of source and destination (column, slice); adds: one slice, on top of what is there
//   copy_rows     int32 rows, columns, wide, true hides; uint64 row strides in bytes of source and destination, their
//                 addresses, address of a padding uint8 (row) or 0: zeros for hidden rows
//   layer_norm_gradient  int32 rows, elements of a row, wide; epsilon float; uint64 addresses of x, weight f32, dy,
//   which
//                 becomes dx, and of products f32 (element, row): dy times the normalised x
//   transpose     int32 rows, columns, columns of the destination, zeros behind the rows; uint64 row strides in bytes
//   of
//                 source and destination, their addresses
enum class Op : int32_t {
    rope,
    kv_append,
    kv_copy,
    merge_states,
    dropout_mask,
    attention_probs,
    linear_rows,
    linear,
    layer_norm,
    put_words,
    sequences,
    merge_splits,
    clip,
    key_padding,
    add,
    clip_gradient,
    column_sums,
    copy_rows,
    layer_norm_gradient,
    transpose,
    attention_backward,
    attention_backward_bias,
    attention_backward_keys,
    attention_backward_queries,
    attention_backward_sinks,
    attention_backward_stats
};

constexpr int num_put_words = 256;
constexpr int num_move_segments = 32, move_segment_words = 4;
constexpr int max_merge_states = 64, merge_state_words = 2;

struct OpKernel {
    const char *name;
    Op op;
    heed_dtype dtype, kv_dtype;
    Isa isa;
    int (*call)(void **args);
    int32_t rows = 0, columns = 0;  // linear and linear_rows: the register tile; attention_backward*: the tile
};

struct KernelTable {
    const Kernel *rows;
    int32_t count;
    const OpKernel *ops = nullptr;
    int32_t num_ops = 0;
};

}  // namespace heed

// Defined by the one kernel library of a program, in its generated kernel_table.cpp.
extern "C" const heed::KernelTable heed_kernel_table;
