/** @file
 * Lists of the fields of heed_problem and heed_layer_config and of the arrays of heed_args, for programs that handle
 * them by name: bindings, files, command lines. heed.h says what each means. C99 and C++17.
 *
 *     #define PRINT_FIELD(name, initial, least, most, allowed) printf("%s: %s\n", #name, allowed);
 *     HEED_PROBLEM_FIELDS(PRINT_FIELD)
 *
 * An entry for a field is X(name, initial, least, most, allowed): heed_problem_init sets the field to `initial`, and
 * heed_plan_create refuses values outside of least..most with a message that ends with the text `allowed`. A field
 * whose initial value is NaN may be NaN. heed_plan_create also checks rules between fields and this version's limits.
 */
#ifndef HEED_FIELDS_H
#define HEED_FIELDS_H

#include <float.h>
#include <math.h>

#include "heed.h"

/** Fields that say which keys a query sees and what its logits are. heed_layer_config has the same fields. */
#define HEED_LOGIT_FIELDS(X)                                                                                           \
    X(causal, false, 0, 1, "0 or 1")                                                                                   \
    X(window_left, -1, -1, INT32_MAX, "-1 (unlimited) or 0..2147483647")                                               \
    X(window_right, -1, -1, INT32_MAX, "-1 (unlimited) or 0..2147483647")                                              \
    X(scale, NAN, -FLT_MAX, FLT_MAX, "finite, or NaN for 1/sqrt(head_dim)")                                            \
    X(temperature_growth, 0, -FLT_MAX, FLT_MAX, "finite")                                                              \
    X(temperature_interval, 8192, 1, INT32_MAX, "1..2147483647")                                                       \
    X(temperature_shift, 0, 0, INT32_MAX, "0..2147483647")                                                             \
    X(softcap, 0, 0, FLT_MAX, "0 (off) or finite and positive")                                                        \
    X(mask_true_hides, false, 0, 1, "0 or 1")                                                                          \
    X(alibi_symmetric, false, 0, 1, "0 or 1")

/** The other fields that case files and Python take by name. */
#define HEED_CALL_FIELDS(X)                                                                                            \
    X(position, HEED_TOP_LEFT, HEED_TOP_LEFT, HEED_EXPLICIT,                                                           \
      "HEED_TOP_LEFT (0), HEED_BOTTOM_RIGHT (1) or HEED_EXPLICIT (2)")                                                 \
    X(num_splits, 0, 0, INT32_MAX, "0..2147483647")                                                                    \
    X(batch_invariant, false, 0, 1, "0 or 1")

/** Fields that Python takes by name; the command takes them in ways of its own, or not at all. */
#define HEED_OPTION_FIELDS(X)                                                                                          \
    X(dropout_p, 0, 0, 1, "0..1")                                                                                      \
    X(max_q_len, 0, 0, INT32_MAX, "0..2147483647")                                                                     \
    X(max_kv_len, 0, 0, INT32_MAX, "0..2147483647")                                                                    \
    X(max_threads, 0, 0, 1024, "0..1024")                                                                              \
    X(cuda_capability, 0, 0, INT32_MAX, "0..2147483647")

/** All fields that Python takes by name. */
#define HEED_NAMED_FIELDS(X)                                                                                           \
    HEED_LOGIT_FIELDS(X)                                                                                               \
    HEED_CALL_FIELDS(X)                                                                                                \
    HEED_OPTION_FIELDS(X)

/** Fields that Python and the command read off the tensors of a call. */
#define HEED_TENSOR_FIELDS(X)                                                                                          \
    X(device, HEED_CPU, HEED_CPU, HEED_CUDA, "HEED_CPU (0) or HEED_CUDA (1)")                                          \
    X(dtype, HEED_F32, HEED_F32, HEED_BF16, "HEED_F32 (0), HEED_F16 (1) or HEED_BF16 (2)")                             \
    X(kv_dtype, HEED_F32, HEED_F32, HEED_I8, "dtype or HEED_I8 (3)")                                                   \
    X(batch, 0, 0, INT32_MAX, "0..2147483647")                                                                         \
    X(num_heads, 0, 0, INT32_MAX, "0..2147483647")                                                                     \
    X(num_kv_heads, 0, 1, INT32_MAX, "at least 1")                                                                     \
    X(head_dim, 0, 1, 640, "1..640")                                                                                   \
    X(head_dim_v, 0, 1, 640, "1..640")                                                                                 \
    X(total_q, 0, 0, INT32_MAX, "0..2147483647")                                                                       \
    X(total_kv, 0, 0, INT32_MAX, "0..2147483647")                                                                      \
    X(num_pages, 0, 0, INT32_MAX, "0..2147483647")                                                                     \
    X(page_size, 0, 0, INT32_MAX, "0..2147483647")                                                                     \
    X(max_pages_per_seq, 0, 0, INT32_MAX, "0..2147483647")                                                             \
    X(q_storage, HEED_Q_DENSE, HEED_Q_DENSE, HEED_Q_VARLEN, "HEED_Q_DENSE (0) or HEED_Q_VARLEN (1)")                   \
    X(kv_storage, HEED_KV_CONTIGUOUS, HEED_KV_CONTIGUOUS, HEED_KV_PAGED,                                               \
      "HEED_KV_CONTIGUOUS (0), HEED_KV_VARLEN (1) or HEED_KV_PAGED (2)")                                               \
    X(has_mask, false, 0, 1, "0 or 1")                                                                                 \
    X(has_bias, false, 0, 1, "0 or 1")                                                                                 \
    X(has_sink, false, 0, 1, "0 or 1")                                                                                 \
    X(has_temperature, false, 0, 1, "0 or 1")                                                                          \
    X(has_alibi, false, 0, 1, "0 or 1")                                                                                \
    X(has_kv_lens, false, 0, 1, "0 or 1")                                                                              \
    X(want_lse, false, 0, 1, "0 or 1")                                                                                 \
    X(metadata_on_device, false, 0, 1, "0 or 1")                                                                       \
    X(bias_dtype, HEED_F32, INT32_MIN, INT32_MAX, "HEED_F32 (0) or dtype")

/** All fields with a range. */
#define HEED_PROBLEM_FIELDS(X) HEED_TENSOR_FIELDS(X) HEED_NAMED_FIELDS(X)

/** The fields without a range, as X(name); heed_problem_init sets them to zero. These, HEED_PROBLEM_FIELDS and
 * struct_size are all fields of heed_problem. */
#define HEED_OTHER_FIELDS(X)                                                                                           \
    X(q_layout)                                                                                                        \
    X(k_layout)                                                                                                        \
    X(v_layout)                                                                                                        \
    X(out_layout)                                                                                                      \
    X(lse_layout)                                                                                                      \
    X(mask_shape)                                                                                                      \
    X(bias_shape)                                                                                                      \
    X(mask_layout)                                                                                                     \
    X(bias_layout)                                                                                                     \
    X(score_mod)

/** The metadata of heed_args, arrays of int32, as X(name, rank, axes). */
#define HEED_METADATA_ARRAYS(X)                                                                                        \
    X(cu_seqlens_q, 1, "[batch + 1]")                                                                                  \
    X(cu_seqlens_kv, 1, "[batch + 1]")                                                                                 \
    X(kv_lens, 1, "[batch]")                                                                                           \
    X(q_offsets, 1, "[batch]")                                                                                         \
    X(page_table, 2, "[batch, max_pages_per_seq]")

/** The arrays of heed_args with a float for each head, [num_heads], as X(name, used, otherwise): execute reads the
 * array when the field `used` of heed_problem is true; else it is as one of `otherwise`. */
#define HEED_HEAD_ARRAYS(X)                                                                                            \
    X(sink, has_sink, -INFINITY)                                                                                       \
    HEED_LOGIT_ARRAYS(X)

/** Those of them that change logits. */
#define HEED_LOGIT_ARRAYS(X)                                                                                           \
    X(temperature, has_temperature, 1)                                                                                 \
    X(alibi_slopes, has_alibi, 0)

/** The other fields of heed_layer_config, as X(name), without struct_size and dtype. */
#define HEED_LAYER_FIELDS(X)                                                                                           \
    X(device)                                                                                                          \
    X(dim_in)                                                                                                          \
    X(dim_context)                                                                                                     \
    X(dim_out)                                                                                                         \
    X(num_heads)                                                                                                       \
    X(num_kv_heads)                                                                                                    \
    X(head_dim)                                                                                                        \
    X(head_dim_v)                                                                                                      \
    X(cross)                                                                                                           \
    X(weight_layout)                                                                                                   \
    X(position)                                                                                                        \
    X(dropout_p)                                                                                                       \
    X(clip_qkv)                                                                                                        \
    X(qk_norm)                                                                                                         \
    X(qk_norm_epsilon)                                                                                                 \
    X(rotary_dim)                                                                                                      \
    X(rope_interleaved)                                                                                                \
    X(max_position)                                                                                                    \
    X(max_batch)                                                                                                       \
    X(max_q_len)                                                                                                       \
    X(max_kv_len)                                                                                                      \
    X(max_threads)

/** The words for a heed_dtype in names of kernels and on command lines, as X(value, word). */
#define HEED_DTYPE_WORDS(X)                                                                                            \
    X(HEED_F32, "f32")                                                                                                 \
    X(HEED_F16, "f16")                                                                                                 \
    X(HEED_BF16, "bf16")                                                                                               \
    X(HEED_I8, "i8")                                                                                                   \
    X(HEED_U8, "u8")                                                                                                   \
    X(HEED_I32, "i32")

/** The same for a heed_isa. */
#define HEED_ISA_WORDS(X)                                                                                              \
    X(HEED_X86_64, "x86_64")                                                                                           \
    X(HEED_AVX2, "avx2")                                                                                               \
    X(HEED_AVX512, "avx512")                                                                                           \
    X(HEED_AVX512_BF16, "avx512bf16")                                                                                  \
    X(HEED_AMX, "amx")                                                                                                 \
    X(HEED_SM75, "sm75")                                                                                               \
    X(HEED_SM80, "sm80")                                                                                               \
    X(HEED_SM90, "sm90")

/** The word for a value, "?" for one outside the enum. */
#define HEED_WORD_CASE(value, word)                                                                                    \
    case value:                                                                                                        \
        return word;
static inline const char *heed_dtype_word(heed_dtype dtype) {
    switch (dtype) { HEED_DTYPE_WORDS(HEED_WORD_CASE) }
    return "?";
}
static inline const char *heed_isa_word(heed_isa isa) {
    switch (isa) { HEED_ISA_WORDS(HEED_WORD_CASE) }
    return "?";
}

/** The words for a heed_position in case files and Python, as X(value, word). */
#define HEED_POSITION_WORDS(X)                                                                                         \
    X(HEED_TOP_LEFT, "top_left")                                                                                       \
    X(HEED_BOTTOM_RIGHT, "bottom_right")                                                                               \
    X(HEED_EXPLICIT, "explicit")

/** The words for a heed_device in Python, as X(value, word). */
#define HEED_DEVICE_WORDS(X)                                                                                           \
    X(HEED_CPU, "cpu")                                                                                                 \
    X(HEED_CUDA, "cuda")

/** The words for a heed_weight_layout in Python, as X(value, word). */
#define HEED_WEIGHT_LAYOUT_WORDS(X)                                                                                    \
    X(HEED_WEIGHTS_SEPARATE, "separate")                                                                               \
    X(HEED_WEIGHTS_FUSED, "fused")                                                                                     \
    X(HEED_WEIGHTS_EINSUM, "einsum")

/** The words for a heed_qk_norm in Python, as X(value, word). */
#define HEED_QK_NORM_WORDS(X)                                                                                          \
    X(HEED_QK_NORM_NONE, "none")                                                                                       \
    X(HEED_QK_NORM_MODEL, "model")                                                                                     \
    X(HEED_QK_NORM_HEAD, "head")

#endif
