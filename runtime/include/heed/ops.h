/** @file
 * Operations around attention: cache append and copy, RoPE, merging of states, probabilities, dropout masks, dense
 * layers, gradients. Include <heed/heed.h>. All are all-or-nothing: a failed call writes nothing. Thread-safe on
 * distinct outputs. A version that has no kernel for one answers HEED_UNSUPPORTED and names the function.
 * Argument structs: set struct_size to sizeof and zero what is not used. Index order and layouts as in types.h.
 *
 * On CUDA (every function but heed_dropout_mask, which answers HEED_NO_DEVICE; weights come from
 * heed_linear_on_device): what a heed_tensor names, and the sink, is device memory of the stream's context. Metadata
 * (the arrays of int32, ranges, the tensor structs) is host memory, which is checked as on the CPU and has been read
 * when the call returns: it travels as parameters of the launches. A call only launches: it allocates nothing on the
 * device, copies nothing and waits for nothing. It may be captured into a graph, which then holds the metadata's
 * values. A launch takes 32 sequences, or 32 runs of neighbouring tokens (a run is a sequence, or the part of it in one
 * page, with neighbouring positions). Results are the CPU's except for the last bits of f32 arithmetic; int8 codes and
 * copies are bitwise the CPU's. */
#ifndef HEED_OPS_H
#define HEED_OPS_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

struct heed_plan;
struct heed_args;
struct heed_problem;

/** How an operation runs; all zero = CPU, all CPUs of the process, Heed's own threads. */
typedef struct heed_execution {
    heed_device device;            /**< where the tensors are and the kernel runs */
    int32_t num_threads;           /**< 0 = the CPUs of this process */
    const heed_parallel_for *pool; /**< NULL = Heed's own threads */
    void *stream;                  /**< CUDA stream */
    void *workspace; /**< 128-byte aligned. Layers ask for one; heed_linear and heed_kv_append take their scratch from
                      * it as far as it goes; NULL: from the heap. CUDA: device memory, see heed_kv_copy */
    size_t workspace_bytes;
} heed_execution;

/* ---- RoPE ----------------------------------------------------------------------------------------------------- */

/** Rotates pairs (a, b) of the first rotary_dim elements to (a cos - b sin, b cos + a sin); the rest is copied. */
typedef struct heed_rope_tables {
    int32_t rotary_dim;   /**< even, 0..head_dim */
    bool interleaved;     /**< pairs (2n, 2n+1); else half-split: (n, n + rotary_dim / 2) */
    int32_t max_position; /**< rows of the tables; every position is in 0..max_position-1 */
    heed_tensor cos, sin; /**< f32 [max_position, rotary_dim / 2], or [batch, len, rotary_dim / 2] where positions is
                           * NULL (heed_kv_append: always the former) */
    const int32_t *positions; /**< [batch, len]; NULL = per-token tables (heed_kv_append: tokens after kv_lens) */
} heed_rope_tables;

/** One call of heed_rope. */
typedef struct heed_rope_args {
    uint32_t struct_size;
    heed_dtype dtype;
    int32_t batch, len, num_heads, head_dim;
    heed_tensor x, out; /**< [batch, len, num_heads, head_dim]; out may be x itself with the same layout */
    heed_layout x_layout, out_layout;
    heed_rope_tables tables;
    heed_execution execution;
} heed_rope_args;

/** Errors: INVALID_ARGUMENT (a position outside the tables, an overlap other than x itself), UNSUPPORTED, INTERNAL. */
HEED_API heed_status heed_rope(const heed_rope_args *args);

/* ---- Key/value cache ------------------------------------------------------------------------------------------ */

/** A cache in the caller's memory, of kv_storage HEED_KV_CONTIGUOUS or HEED_KV_PAGED. */
typedef struct heed_kv_view {
    heed_kv_storage storage;
    heed_dtype dtype; /**< HEED_I8: codes, with scale = max|x| / 127 per row of head_dim elements */
    int32_t batch, num_kv_heads, head_dim, head_dim_v;
    int32_t capacity;                                /**< contiguous: positions per sequence */
    int32_t num_pages, page_size, max_pages_per_seq; /**< paged */
    heed_tensor k, v;                                /**< [batch, capacity, ...] or [num_pages, page_size, ...] */
    heed_layout k_layout, v_layout;
    heed_tensor k_scale, v_scale; /**< f32, shaped as k and v without the last dimension, packed; HEED_I8 only */
    const int32_t *page_table;    /**< [batch, max_pages_per_seq] */
    int32_t *kv_lens;             /**< [batch] counts of valid tokens */
} heed_kv_view;

/** Appends new_lens[b] (NULL: new_len) tokens after kv_lens[b], then adds them to kv_lens[b].
 * Into an int8 cache: scale = max|x| / 127, code = x / scale rounded half to even, -127..127. A row of zeros has scale
 * 0; a row with NaN or infinity has scale NaN; codes are 0 where the scale is 0 or NaN. Keys that are rotated are
 * rounded to dtype first: the result has the bits of heed_rope followed by an append. The cache's k and v may
 * interleave in one allocation, by pages (sequences), tokens or heads. INVALID_ARGUMENT: a length beyond the capacity,
 * a page id out of range among the pages written to, two tokens for one slot, a position outside the tables, any
 * overlap of what is written with what is read (a source that is its own destination too). Page table entries that are
 * not written through are not read. OUT_OF_MEMORY before any write. */
typedef struct heed_kv_append_args {
    uint32_t struct_size;
    heed_dtype dtype;         /**< of k_new and v_new */
    int32_t new_len;          /**< tokens per sequence in k_new and v_new */
    const int32_t *new_lens;  /**< [batch], 0..new_len, or NULL */
    heed_tensor k_new, v_new; /**< [batch, new_len, num_kv_heads, head_dim or head_dim_v] */
    heed_layout k_new_layout, v_new_layout;
    heed_kv_view cache;
    const heed_rope_tables *rope; /**< NULL, or rotates K on its way; without positions: token t at kv_lens[b] + t */
    heed_execution execution;
} heed_kv_append_args;

/** As heed_kv_append_args says. */
HEED_API heed_status heed_kv_append(const heed_kv_append_args *args);

/** One range of a cache copy. Paged: from and to are page ids and `begin`, `count` are tokens inside the page;
 * contiguous: sequences, and tokens of the sequence. */
typedef struct heed_kv_range {
    int32_t from, to;
    int32_t begin, count;
} heed_kv_range;

/** Copies K, V and scales of `num_ranges` ranges, for beams and shared prefixes. Sources are read as they were before
 * the call, whatever ranges write over others' sources (that takes memory of about 1 MiB, or one token per such range;
 * on CUDA the workspace: WORKSPACE_TOO_SMALL when one token of each such range does not fit); two writes to one slot
 * are an error. Lengths and tables stay the caller's and are not used. execution may be NULL. */
HEED_API heed_status heed_kv_copy(const heed_kv_view *cache, const heed_kv_range *ranges, int32_t num_ranges,
                                  const heed_execution *execution);

/* ---- Merging attention states --------------------------------------------------------------------------------- */

/** Merges attention over disjoint key sets: out = sum_n w_n * outs[n], w_n = exp(lses[n] - lse), and
 * lse = log sum_n exp(lses[n]). Exact for a single state; merging an empty state (lse = -inf) changes no bit, whatever
 * its out holds. Without any key out = +0 and lse = the sink, or -inf. NaN in an lse or sink gives NaN in that row.
 * On CUDA UNSUPPORTED: more than 64 states, or 2^30 elements. */
typedef struct heed_merge_args {
    uint32_t struct_size;
    heed_dtype dtype; /**< of outs and out */
    int32_t batch, q_len, num_heads, head_dim_v;
    int32_t num_states;      /**< >= 1 */
    const heed_tensor *outs; /**< [num_states] tensors [batch, q_len, num_heads, head_dim_v], layout outs_layout */
    const heed_tensor *lses; /**< [num_states] f32 tensors [batch, num_heads, q_len], packed */
    heed_layout outs_layout, out_layout;
    const float *sink; /**< [num_heads] raw logits that join the denominator once, or NULL */
    heed_tensor out;   /**< may be outs[0] itself with the same layout */
    heed_tensor lse;   /**< f32, packed; data NULL = not wanted */
    heed_execution execution;
} heed_merge_args;

/** As heed_merge_args says. */
HEED_API heed_status heed_merge_states(const heed_merge_args *args);

/* ---- Probabilities and dropout masks -------------------------------------------------------------------------- */

/** How far heed_attention_probs goes. */
typedef enum heed_probs_mode HEED_ENUM_WIDTH {
    HEED_PROBS_SCORES = 0,  /**< raw scaled scores */
    HEED_PROBS_SOFTCAP = 1, /**< after temperature and cap */
    HEED_PROBS_MASKED = 2,  /**< after mask and bias: -inf where not visible */
    HEED_PROBS_SOFTMAX = 3  /**< probabilities before dropout: exact 0 where not visible and for queries without keys */
} heed_probs_mode;

/** Writes [batch, num_heads, q_len, kv_len] values in the problem's dtype or f32. v and out of args are not used. Plans
 * with a score_mod get HEED_UNSUPPORTED.
 * The call writes q_len * kv_len values for each head. On the CPU it takes memory from the heap for the keys in f32; on
 * CUDA it uses the workspace and device_status of args as heed_execute does. */
HEED_API heed_status heed_attention_probs(const struct heed_plan *plan, const struct heed_args *args,
                                          heed_probs_mode mode, const heed_tensor *probs,
                                          const heed_layout *probs_layout);

/** Writes the dropout mask that attention uses: uint8 [batch, num_heads, max_q_len, max_kv_len], 1 = kept.
 * Philox4x32-10, key = seed, counter low 64 = e >> 2, high 64 = offset, word e & 3, with
 * e = ((b * num_heads + h) * max_q_len + i) * max_kv_len + j; dropped iff word < round(dropout_p * 2^32).
 * Layout indices are [batch, num_heads, max_q_len, max_kv_len]; a NULL layout is packed, a NULL execution all zero. */
HEED_API heed_status heed_dropout_mask(const struct heed_problem *problem, uint64_t seed, uint64_t offset,
                                       const heed_tensor *keep, const heed_layout *keep_layout,
                                       const heed_execution *execution);

/* ---- Dense layers --------------------------------------------------------------------------------------------- */

/** Weights in the order that the kernels read; packed once, then read-only and shared by any threads. */
typedef struct heed_linear_weights heed_linear_weights;

/** Packs weight [dim_out, dim_in] (row-major, stride row_stride elements; 0 = dim_in) and bias [dim_out] or NULL, of
 * `dtype`. The result is the caller's, for heed_linear_weights_destroy; the sources are not kept. */
HEED_API heed_status heed_linear_pack(heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor *weight,
                                      int64_t row_stride, const heed_tensor *bias, heed_linear_weights **weights);
/** Frees the weights. NULL is fine. No call with these weights may be running. */
HEED_API void heed_linear_weights_destroy(heed_linear_weights *weights);

/** For heed_linear on CUDA: weight and bias are device memory, which stays the caller's, is read by each call and must
 * outlive *weights. Otherwise as heed_linear_pack. */
HEED_API heed_status heed_linear_on_device(heed_dtype dtype, int32_t dim_in, int32_t dim_out, const heed_tensor *weight,
                                           int64_t row_stride, const heed_tensor *bias, heed_linear_weights **weights);

/** One piece of the output columns, so that a fused projection writes straight into q, k, v or a cache.
 * Column c of the piece goes to out[row / len][row % len][c / head_dim][c % head_dim]. Pieces in one allocation may
 * interleave along sequences, tokens or heads of equal strides: a packed QKV. */
typedef struct heed_linear_out {
    int32_t num_heads, head_dim; /**< num_heads * head_dim columns */
    heed_tensor out;             /**< [batch, len, num_heads, head_dim] */
    heed_layout layout;
    const heed_rope_tables *rope; /**< or NULL */
} heed_linear_out;

/** y = x W^T + bias over batch * len rows, sums in f32; the pieces together have dim_out columns. A row's bits depend
 * on the row alone. */
typedef struct heed_linear_args {
    uint32_t struct_size;
    int32_t batch, len;
    heed_tensor x; /**< [batch, len, 1, dim_in] in the weights' dtype */
    heed_layout x_layout;
    int32_t num_outs; /**< >= 1 */
    const heed_linear_out *outs;
    heed_execution execution;
} heed_linear_args;

/** As heed_linear_args says. */
HEED_API heed_status heed_linear(const heed_linear_weights *weights, const heed_linear_args *args);

/* ---- Gradients ------------------------------------------------------------------------------------------------ */

/** Gradients of y = x W^T + bias, by heed_linear's kernels. All tensors are packed; data NULL = that gradient is not
 * wanted, and what only it reads may be NULL. dx is written; dweight and dbias are summed into, as batches of a step
 * add up. Sums over rows are in f32 within a call; what is added to a tensor of `dtype` is rounded to it first, what is
 * added to one of f32 is not. The bits do not depend on threads. Memory: W, x and dy in the kernels' order, and dweight
 * once, on the CPU from the heap, on CUDA from the execution's workspace; on the CPU f32 dweight of f16 and bf16 also
 * takes x and dy in f32, and the kernels of f32. CUDA launches on the execution's stream, as heed_linear does. */
typedef struct heed_linear_backward_args {
    uint32_t struct_size;
    heed_dtype dtype;
    int32_t num_rows, dim_in, dim_out; /**< num_rows >= 0, dims >= 1 */
    heed_tensor x;                     /**< [num_rows, dim_in], for dweight */
    heed_tensor weight;                /**< [dim_out, dim_in], for dx */
    heed_tensor dy;                    /**< [num_rows, dim_out] */
    heed_tensor dx;                    /**< [num_rows, dim_in] of dtype */
    heed_tensor dweight, dbias;        /**< [dim_out, dim_in] and [dim_out], of dtype or f32 */
    heed_execution execution;
} heed_linear_backward_args;

/** Bytes of execution.workspace that the call needs, 128-byte aligned: on the CPU none, on CUDA by dtype, num_rows,
 * dims and what is wanted. 0 for NULL and for arguments that the call refuses. */
HEED_API size_t heed_linear_backward_workspace_bytes(const heed_linear_backward_args *args);

/** As heed_linear_backward_args says. */
HEED_API heed_status heed_linear_backward(const heed_linear_backward_args *args);

/** Gradients of one heed_execute, recomputed from lse. Layouts as the forward tensors': dq as q, dk as k, dv as v (each
 * may be packed or strided, but not broadcast), dout as out, dbias as bias (summed over broadcast axes), of bias_dtype.
 * data NULL = that gradient is not wanted. Every element of an output is written: 0 where no query sees the key, where
 * the query sees no key, and after kv_lens. Nothing of dbias is written for problems without queries or keys. */
typedef struct heed_gradients {
    uint32_t struct_size;
    heed_tensor dout;         /**< input */
    heed_tensor dq, dk, dv;   /**< outputs, in the problem's dtype */
    heed_tensor dbias, dsink; /**< outputs; dsink f32 [num_heads] */
} heed_gradients;

/** Bytes of args.workspace that heed_attention_backward needs; 0 where it does not serve the plan. On the CPU they hold
 * about q, out and dq in f32 and, where batch * num_kv_heads is below 8, k and v in f32; on CUDA 8 bytes for each of
 * batch * num_heads * (max_q_len rounded up to 64) rows and 32 for each sequence of own lengths; never the scores. */
HEED_API size_t heed_attention_backward_workspace_bytes(const struct heed_plan *plan);
/** `args` holds the forward call's tensors: q, k, v, out, lse and its metadata, seed and offset, and a workspace of
 * heed_attention_backward_workspace_bytes(plan).
 *
 * It serves every forward feature in f32, f16 and bf16, with sums in f32. On matrix tiles (AMX: bf16, CUDA from sm_80
 * on: f16, bf16) weights and their gradients round to the type before they multiply dout, q and k. In f16 gradients of
 * scores above 65504 become infinite and those below 2^-25 are lost: scale the loss. UNSUPPORTED are int8 and paged
 * keys.
 * Gradients go through a score function (heed_add_kernels(... OPS attention_backward SCORE_MOD)), not to its buffers;
 * dbias is that of the bias before it. On CPUs whose dot products of bf16 are slower than multiply-adds of floats, bf16
 * is computed in floats. Needs want_lse. Weights are exp(x - lse): their relative error is about 2^-23 (|x| + |lse|),
 * so that queries whose lse a bias of the size of FLT_MAX has made huge have no meaningful gradients. Keys that a query
 * does not see change no bit of its gradients, whatever they hold. The bits of a result do not depend on threads; with
 * batch_invariant, those of dq, dk and dv do not depend on the batch either. Outputs and workspace may overlap nothing,
 * and may not interleave with anything. Nothing is allocated.
 *
 * On CUDA: asynchronous on args->stream, launches only, and may be captured into a graph; dbias is summed by a simple
 * kernel, slower than the others. A row of dout, or of v, that is not finite makes dv of the keys that it sees, or
 * its own, NaN on tensor cores; in f32 arithmetic at most the elements that it reaches. dbias serves up to 2^31-1
 * elements. Errors: INVALID_ARGUMENT, UNSUPPORTED, NO_DEVICE, WORKSPACE_TOO_SMALL,
 * INTERNAL. */
HEED_API heed_status heed_attention_backward(const struct heed_plan *plan, const struct heed_args *args,
                                             const heed_gradients *gradients);

#ifdef __cplusplus
}
#endif
#endif
