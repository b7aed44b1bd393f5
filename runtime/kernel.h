// The contract between generated kernels and the runtime: one Kernel per row of the table, all called alike.
//
// `call` is Halide's argv form: args[i] points to argument i; for a buffer args[i] IS the halide_buffer_t *.
// Every attention row takes the same arguments in the same order (enum Argument). Buffers list dimensions innermost
// first, reversed against the API's index order; all mins are 0, innermost strides 1, extent-1 strides canonical:
//   q, k, v, out  (d, head, position, batch); the position extent of k and v is max_kv_len
//   mask, bias    (kv, q, head, batch), full extents, stride 0 on broadcast axes; a one-element dummy when unused
//   seq           int32 (4, batch): kv_len, visible_begin, visible_end, position_offset (enum SeqField)
//                 Row i sees the keys j in [max(0, i + visible_begin), min(kv_len, i + visible_end)).
//   lse           f32 (d, head, position, batch), stride 0 along d, always present
// Scratch comes from halide_malloc/halide_free only. Returns 0 or a negative Halide code.
#pragma once

#include <cstdint>

#include "heed/heed.h"

namespace heed {

enum class Phase : int32_t { prefill = HEED_PREFILL, decode = HEED_DECODE };

// In order of preference: a later one is faster where the CPU has it. x86_64 means SSE4.1.
enum class Isa : int32_t { x86_64 = HEED_X86_64, avx2 = HEED_AVX2, avx512 = HEED_AVX512 };

// The plain tokens of generated table lines: HEED_KERNEL(name, prefill, f32, f32, 64, 64, 0, contiguous, avx2, ...).
namespace token {
constexpr heed_dtype f32 = HEED_F32, f16 = HEED_F16, bf16 = HEED_BF16, i8 = HEED_I8, u8 = HEED_U8;
constexpr heed_kv_storage contiguous = HEED_KV_CONTIGUOUS, varlen = HEED_KV_VARLEN, paged = HEED_KV_PAGED;
}  // namespace token

// bias, mask: what a row can serve beyond the plain problem. gqa: a decode row works on several rows (heads of a group,
// positions) at once; it serves any group, and so does a row without it.
enum Feature : uint32_t {
    feature_bias = HEED_FEATURE_BIAS,
    feature_mask = HEED_FEATURE_MASK,
    feature_gqa = HEED_FEATURE_GQA
};

enum Argument {
    arg_user_context,
    arg_q,
    arg_k,
    arg_v,
    arg_mask,             // uint8
    arg_bias,             // f32
    arg_seq,              // int32
    arg_scale,            // float; the kernel folds log2(e)
    arg_split_len,        // int32; decode: split s covers the keys [s * split_len, (s + 1) * split_len), a multiple of
                          // kv_block; 0 for prefill rows
    arg_num_splits,       // int32; num_splits * split_len >= max_kv_len; 1 for prefill rows
    arg_mask_true_hides,  // uint8, 0 or 1: the mask value that hides (any non-zero element counts as 1)
    arg_out,
    arg_lse,
    num_arguments
};

enum SeqField { seq_kv_len, seq_visible_begin, seq_visible_end, seq_position_offset, num_seq_fields };

struct Kernel {
    const char *name;
    Phase phase;
    heed_dtype dtype, kv_dtype;
    int32_t head_dim, head_dim_v;  // 0 = any, up to 640
    uint32_t features;             // Feature bits; a row with features serves problems without them too
    heed_kv_storage kv_storage;
    Isa isa;
    int32_t row_block, kv_block;
    int64_t scratch_per_thread;  // halide_malloc bytes of one task at most; -1: unbounded, the heap serves (test rows)
    const char *schedule;
    int (*call)(void **args);
    int64_t code_bytes = 0;
};

// Operations around attention, on one block of rows: serial, without scratch. Buffers list dimensions innermost first,
// all mins are 0, strides are below 2^31. Inputs, scalars, then outputs, behind the user context:
//   rope          x (pair, part, head, token), cos, sin f32 (pair, table row), positions int32 (token),
//                 position_step int32; out as x. Pair strides (1, pairs) or (2, 1). Token t reads the table row
//                 positions[t] + position_step * t. out may be x.
//   kv_append     x (d, head, token); codes int8 (d, head, token), scale f32 (head, token)
//   merge_states  x (d, row, state), lse f32 (row, state), sink f32 (row); scratch outputs row_max f32 (row),
//                 row_sum f32 (row), weights f32 (row, state); lse f32 (row), out (d, row)
//   dropout_mask  seed, offset, first, row_length, threshold uint64; keep uint8 (j, i): element (j, i) is element
//                 first + i * row_length + j of the mask
enum class Op : int32_t { rope, kv_append, merge_states, dropout_mask };

struct OpKernel {
    const char *name;
    Op op;
    heed_dtype dtype, kv_dtype;
    Isa isa;
    int (*call)(void **args);
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
