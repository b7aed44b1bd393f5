/** @file
 * Heed: attention kernels generated ahead of time by Halide. C99 and C++17. This header only grows: no field, value or
 * function changes its meaning or place.
 *
 *     x[b,h,i,j]   = scale * dot(q[b,i,h,:], k[b,j,g,:])            g = h / (num_heads / num_kv_heads)
 *     x           *= temperature[h] * (1 + temperature_growth * log(1 + floor((max(p(i), 0) + temperature_shift)
 *                    / temperature_interval)))                     optional, served by kernels with softcap
 *     x            = softcap * tanh(x / softcap)                    when softcap > 0
 *     x           += bias[b,h,i,j] + alibi_slopes[h] * (j - p(i))   each optional
 *     visible      = (not causal or j <= p(i)) and p(i) - window_left <= j <= p(i) + window_right
 *                    and mask and j < kv_len and bias > -inf
 *     probs        = softmax over the visible j; with a sink, exp(sink[h]) joins the denominator
 *     probs        = dropout(probs)
 *     out[b,i,h,:] = sum_j probs[b,h,i,j] * v[b,j,g,:]
 *     lse[b,h,i]   = natural log of the softmax denominator (the sink counts; before dropout), f32
 *
 * A query that sees no key gives out = +0 and lse = -inf (with a sink: lse = sink). Keys that are not visible never
 * change a bit of a result, whatever they hold. Results never depend on the number of threads.
 *
 * Use: heed_problem_init, fill, heed_plan_create once; heed_args_init, fill, heed_execute many times.
 * Functions that return heed_status never abort, print or throw; heed_last_error() tells what was wrong. They compute
 * in the default floating-point environment, and restore the caller's: modes, masks and sticky flags. */
#ifndef HEED_HEED_H
#define HEED_HEED_H

#include "types.h"

#define HEED_VERSION_MAJOR 0 /**< of these headers; heed_version() is the library's */
#define HEED_VERSION_MINOR 1 /**< of these headers */
#define HEED_VERSION_PATCH 0 /**< of these headers */

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The problem: everything that is fixed while a plan lives ------------------------------------------------- */

/** Filled by heed_problem_init, then by the caller. Counts are 0..2^31-1. A plan copies it. <heed/fields.h> lists the
 * fields with their defaults and ranges. */
typedef struct heed_problem {
    uint32_t struct_size; /**< sizeof(heed_problem), set by heed_problem_init; 0 is an error */
    heed_device device;   /**< where the tensors are and the kernel runs */
    heed_dtype dtype;     /**< q and out: HEED_F32, HEED_F16 or HEED_BF16 */
    heed_dtype kv_dtype;  /**< k and v: as dtype, or HEED_I8 with k_scale and v_scale */

    int32_t batch;             /**< sequences */
    int32_t num_heads;         /**< query heads, a multiple of num_kv_heads */
    int32_t num_kv_heads;      /**< >= 1; 1 is MQA, num_heads is MHA */
    int32_t head_dim;          /**< elements of a q or k row: 1..640 */
    int32_t head_dim_v;        /**< elements of a v or out row: 1..640, independent of head_dim */
    int32_t max_q_len;         /**< dense queries: q_len itself; varlen: the longest segment */
    int32_t max_kv_len;        /**< contiguous: positions in k and v (a cache's capacity); else the longest sequence */
    int32_t total_q, total_kv; /**< varlen: tokens in q, in k and v */
    int32_t num_pages, page_size, max_pages_per_seq; /**< paged */

    heed_position position;            /**< p(i), the positions of queries among the keys */
    bool causal;                       /**< query i sees no key after p(i) */
    int32_t window_left, window_right; /**< tokens seen before and after p(i), inclusive; -1 = unlimited */
    float scale;                       /**< finite (0 and negative too), or NaN = 1/sqrt(head_dim), the default */
    float temperature_growth; /**< how the factor of logits grows with p(i): finite, 0 = off; Llama 4's attn_scale */
    int32_t temperature_interval; /**< tokens of equal temperature; Llama 4's floor_scale */
    int32_t temperature_shift;    /**< tokens added to p(i); Llama 4: 1, Ministral 3: 0 */
    float softcap;                /**< 0 = off, else finite and > 0 */
    heed_q_storage q_storage;     /**< of q and out */
    heed_kv_storage kv_storage;   /**< varlen keys: with varlen queries only */

    bool has_mask;           /**< execute gets mask */
    bool mask_true_hides;    /**< a true mask element hides the key; default: true = may attend */
    bool has_bias;           /**< execute gets bias */
    bool has_sink;           /**< execute gets sink */
    bool has_temperature;    /**< execute gets temperature */
    bool has_alibi;          /**< execute gets alibi_slopes */
    bool alibi_symmetric;    /**< -slope * |j - p(i)| instead of slope * (j - p(i)) */
    bool has_kv_lens;        /**< contiguous: execute gets kv_lens; false: every sequence has max_kv_len keys */
    bool want_lse;           /**< execute writes lse */
    bool batch_invariant;    /**< a sequence alone and in any batch gives the same bits, by plans of the same max_kv_len
                              * (contiguous and paged keys); packed queries then run prefill kernels at any length */
    bool metadata_on_device; /**< CUDA: lengths, prefix sums, offsets, page_table are device pointers, clamped there */

    float dropout_p; /**< 0..1; 0 is bitwise "off" */
    int32_t
        num_splits; /**< key partitions of a decode kernel, 0 = the plan chooses; fixed by the plan, never by lengths */
    int32_t max_threads; /**< most threads one execute may use, 0 = the CPUs of this process; the workspace grows with
                            it; ignored on CUDA */

    heed_dtype bias_dtype;  /**< HEED_F32, or dtype */
    heed_layout q_layout;   /**< [batch, q_len, num_heads, head_dim]; varlen: [1, total_q, num_heads, head_dim] */
    heed_layout k_layout;   /**< [batch, max_kv_len, num_kv_heads, head_dim]; varlen: [1, total_kv, ...];
                               paged: [num_pages, page_size, num_kv_heads, head_dim] */
    heed_layout v_layout;   /**< as k_layout with head_dim_v */
    heed_layout out_layout; /**< as q_layout with head_dim_v */
    heed_layout lse_layout; /**< [batch, num_heads, q_len, 1]; varlen: [1, num_heads, total_q, 1] */
    /** Mask and bias are indexed [batch, num_heads, q_len, kv_len]; each entry of the shape is the full extent or 1
     * (broadcast), 0 = full. Packed means packed in that shape. kv_len here is max_kv_len. */
    int32_t mask_shape[4], bias_shape[4];
    heed_layout mask_layout, bias_layout; /**< strides of mask and bias in their shapes */

    int32_t cuda_capability; /**< CUDA: 10 * major + minor of the chip, e.g. 90; 0: that of the context that is current
                                on this thread, and without one 80 or newer, which takes no kernel of HEED_SM90. A
                                chip that the kernel does not serve is refused by heed_execute */

    const char
        *score_mod; /**< NULL, or the name of a score function of your own (heed_add_kernels(... SCORE_MOD), see
                       <heed/user_score.h>): kernels with it and no others serve. Read by heed_plan_create only */
} heed_problem;

/** Sets struct_size and every default: zero, except scale = NaN, window_left = window_right = -1,
 * temperature_interval = 8192. */
HEED_API heed_status heed_problem_init(heed_problem *problem);

/* ---- The plan: validated shapes, the chosen kernel, splits, workspace -------------------------------------------- */

/** A valid problem and how it is run. No call changes it. */
typedef struct heed_plan heed_plan;

/** Validates the problem and chooses a kernel. Pure CPU work of a few microseconds, thread-safe: a caller whose strides
 * change with each call can make a plan for each. On success *plan is the caller's, to be given to heed_plan_destroy;
 * on failure *plan is NULL. The environment variable HEED_FORCE_KERNEL=NAME makes the plan use that kernel or
 * fail; HEED_VERBOSE=1 prints one line to stderr: the kernel and why. Errors: INVALID_ARGUMENT, UNSUPPORTED (with a
 * reason per candidate), NO_DEVICE, OUT_OF_MEMORY. */
HEED_API heed_status heed_plan_create(const heed_problem *problem, heed_plan **plan);

/** Frees the plan. NULL is fine. No execute of this plan may be running. */
HEED_API void heed_plan_destroy(heed_plan *plan);

/** Bytes that execute needs, for max_threads threads; it depends on the problem and the kernel only. 0 for NULL. */
HEED_API size_t heed_plan_workspace_bytes(const heed_plan *plan);

/** The kernel's name, as in heed_kernel_info. Lives as long as the library; "" for NULL. */
HEED_API const char *heed_plan_kernel_name(const heed_plan *plan);

/** Key partitions of the plan, 1 for prefill kernels; 0 for NULL. */
HEED_API int32_t heed_plan_num_splits(const heed_plan *plan);

/** A text: the kernel and why it was chosen, splits, workspace, and one line for each candidate kernel of the device:
 * taken, or why not. The first call makes the text; it lives as long as the plan. Thread-safe. "" for NULL, and where
 * memory is out. */
HEED_API const char *heed_plan_explain(const heed_plan *plan);

enum { HEED_MAX_SCORE_BUFFERS = 4 };

/* ---- Execute -------------------------------------------------------------------------------------------------- */

/** Tensors and metadata of one call. Input tensors and arrays [num_heads] that the problem does not declare must be
 * NULL; metadata that it does not ask for is ignored. Metadata is read once.
 * CUDA: tensors, arrays [num_heads] and the workspace are device memory of the stream's context. Metadata (the arrays
 * of int32) is host memory that execute has read when it returns; with metadata_on_device it is device memory that is
 * read on the stream. */
typedef struct heed_args {
    uint32_t struct_size; /**< sizeof(heed_args), set by heed_args_init; 0 is an error */
    int32_t num_threads;  /**< 0 = the plan's max_threads, else 1..max_threads; ignored on CUDA, as is pool */
    heed_tensor q, k, v;
    heed_tensor out;
    heed_tensor lse;              /**< f32, when want_lse, else data NULL */
    heed_tensor mask;             /**< HEED_U8, when has_mask, else data NULL */
    heed_tensor bias;             /**< bias_dtype, when has_bias, else data NULL */
    heed_tensor k_scale, v_scale; /**< f32, shaped as the cache without head_dim, when kv_dtype is HEED_I8 */

    const int32_t *cu_seqlens_q, *cu_seqlens_kv; /**< [batch + 1] tokens: first 0, non-decreasing, last the total */
    const int32_t *kv_lens;                      /**< [batch] counts of valid keys, 0..max_kv_len, when has_kv_lens */
    const int32_t *q_offsets;                    /**< [batch] any values, when HEED_EXPLICIT */
    const int32_t *page_table;                   /**< [batch, max_pages_per_seq] page ids */
    const float *sink, *temperature, *alibi_slopes;    /**< [num_heads] */
    uint64_t dropout_seed, dropout_offset;             /**< Philox4x32-10 key and high counter, see heed_dropout_mask */
    heed_tensor score_buffers[HEED_MAX_SCORE_BUFFERS]; /**< those that the score_mod declares: 1..2^31-1 elements each,
                                                          HEED_I32 or HEED_F32, all of which it may read */

    void *workspace; /**< 128-byte aligned, heed_plan_workspace_bytes(); contents are lost; one per running call */
    size_t workspace_bytes;
    const heed_parallel_for *pool; /**< NULL = Heed's own threads */
    void *stream;                  /**< CUstream or cudaStream_t; NULL: the default stream of the current context */
    int32_t *device_status;        /**< with metadata_on_device, or NULL: see heed_execute */
} heed_args;

/** Sets struct_size and zeroes the rest. */
HEED_API heed_status heed_args_init(heed_args *args);

/** Runs the plan. Checks every pointer, capacity, overlap and metadata value before anything but the workspace
 * is written, and allocates nothing; the first call that needs Heed's own threads starts them. The address ranges of
 * the outputs and the workspace may not overlap each other or any input, not even exactly. Thread-safe: one plan may
 * run in many threads at once, each with its own workspace and outputs; builds of Heed without NDEBUG refuse a
 * workspace that another running call has. Small calls use fewer threads than allowed; no result depends on that. On
 * CUDA asynchronous on `stream`. Empty problems (batch 0, q_len 0) touch nothing; max_kv_len 0 writes zeros and lse =
 * -inf.
 *
 * CUDA: runs on the stream's context, whether it is current or not; with stream NULL one must be current. The first
 * call of a plan's kernel on a context loads the kernel, which allocates and may wait; so may the first CUDA call of a
 * process, which loads the driver. Every later call only launches: it allocates nothing, copies nothing and waits for
 * nothing. All calls may be captured into a graph (the metadata's values are then part of it). A chip below the
 * kernel's compute capability is UNSUPPORTED, and nothing is launched. metadata_on_device: values that are out of range
 * are clamped; the output of their sequences is unspecified, and nothing outside of the tensors is touched.
 * *device_status, an int32 on the device that the caller has set to 0, stays 0 when all is well; else the first fault
 * that the kernel meets is there: sequence << 3 | kind, with kind 1: cu_seqlens_q, 2: cu_seqlens_kv, 3: kv_lens, 4:
 * page_table. It is written only where it was 0. Errors: INVALID_ARGUMENT, WORKSPACE_TOO_SMALL, NO_DEVICE, INTERNAL;
 * CUDA also UNSUPPORTED, OUT_OF_MEMORY. */
HEED_API heed_status heed_execute(const heed_plan *plan, const heed_args *args);

/* ---- Version, errors ------------------------------------------------------------------------------------------ */

/** "major.minor.patch". */
HEED_API const char *heed_version(void);

/** "HEED_OK" and so on; "HEED_UNKNOWN_STATUS" for any other value. Never NULL. */
HEED_API const char *heed_status_name(heed_status status);

/** The sentence of this thread's last failed call, "" when none failed yet. Valid until this thread's next call. */
HEED_API const char *heed_last_error(void);

/* ---- The registry --------------------------------------------------------------------------------------------- */

/** What a kernel is made for: many query rows, or few. */
typedef enum heed_phase HEED_ENUM_WIDTH { HEED_PREFILL = 0, HEED_DECODE = 1 } heed_phase;
/** The instructions that a kernel needs. HEED_AVX512_BF16: AVX-512 and dot products of bf16 (VDPBF16PS). HEED_AMX: the
 * same and matrix tiles (TDPBF16PS); where the CPU has them, the first call that asks what this machine can run (a
 * plan, heed_kernel_get_info) asks Linux to let the process use them (ARCH_REQ_XCOMP_PERM); refused, other kernels
 * serve. HEED_SM75, HEED_SM80: CUDA, compute capability 7.5 and 8.0 or newer. HEED_SM90: CUDA, compute capability 9.0
 * and no other (products of warpgroups). */
typedef enum heed_isa HEED_ENUM_WIDTH {
    HEED_X86_64 = 0,
    HEED_AVX2 = 1,
    HEED_AVX512 = 2,
    HEED_AVX512_BF16 = 3,
    HEED_AMX = 4,
    HEED_SM75 = 5,
    HEED_SM80 = 6,
    HEED_SM90 = 7
} heed_isa;

/** Bits of heed_kernel_info.features: what a kernel can serve beyond the plain problem; it serves problems without them
 * too. GQA: a decode kernel that works on several query rows at once (the heads of a group, positions); kernels with
 * and without it serve any group. */
enum {
    HEED_FEATURE_BIAS = 1,
    HEED_FEATURE_MASK = 2,
    HEED_FEATURE_GQA = 4,
    HEED_FEATURE_SOFTCAP = 8,
    HEED_FEATURE_ALIBI = 16,
    HEED_FEATURE_DROPOUT = 32
};

/** One kernel of the table. Strings live as long as the library. */
typedef struct heed_kernel_info {
    uint32_t struct_size;         /**< set by the caller to sizeof(heed_kernel_info) */
    heed_phase phase;             /**< HEED_DECODE: tiles of few query rows, keys split over threads */
    heed_dtype dtype, kv_dtype;   /**< of q and out, of k and v */
    int32_t head_dim, head_dim_v; /**< 0 = any: 1..640, of CUDA kernels 1..256 */
    uint32_t features;            /**< HEED_FEATURE_* bits */
    heed_kv_storage
        kv_storage; /**< CONTIGUOUS: it serves contiguous and varlen, prefill of f32 pages by copies; PAGED: all */
    heed_isa isa;   /**< instructions that the kernel needs */
    int32_t row_block, kv_block; /**< query rows of a task, keys of a softmax block */
    bool supported;              /**< on this machine; of CUDA kernels: by some device */
    int64_t scratch_bytes; /**< workspace per thread, -1: the kernel takes its scratch from the heap (test kernels) */
    int64_t code_bytes;    /**< machine code; of CUDA kernels the image, for all chips */
    const char *name;      /**< attention_{phase}_{dtype}[_kv{dtype}]_d{D|any}[x{Dv}][_{features}][_score_{score_mod}]
                              _{storage}_{isa} */
    const char *schedule;  /**< "x86", "cuda"; "wide", for large groups; "whole", for keys of many heads that leave
                                the caches; "default", the readable one of tests */
    const char *unsupported_reason; /**< "" when supported */
    const char *score_mod;          /**< the user's score function in the kernel, "" for none */
} heed_kernel_info;

/** Kernels linked into this program or library. */
HEED_API int32_t heed_kernel_count(void);

/** Kernel `index`, 0..heed_kernel_count()-1. INVALID_ARGUMENT for another index or struct_size. Thread-safe. For a CUDA
 * kernel it loads and starts the CUDA driver, if there is one. */
HEED_API heed_status heed_kernel_get_info(int32_t index, heed_kernel_info *info);

/** One kernel of an operation: what the functions of ops.h and layer.h call. Strings live as long as the library. */
typedef struct heed_op_info {
    uint32_t struct_size;           /**< set by the caller to sizeof(heed_op_info) */
    heed_dtype dtype, kv_dtype;     /**< of the tensors, of a cache */
    heed_isa isa;                   /**< instructions that the kernel needs */
    int32_t rows, columns;          /**< of its tile, 0 where it has none */
    bool supported;                 /**< on this machine; of CUDA kernels: by some device */
    const char *name, *op;          /**< "linear_f32_r12_avx512", "linear" */
    const char *unsupported_reason; /**< "" when supported */
} heed_op_info;

/** Kernels of operations linked into this program or library. */
HEED_API int32_t heed_op_count(void);

/** Kernel `index` of an operation, 0..heed_op_count()-1, as heed_kernel_get_info. */
HEED_API heed_status heed_op_get_info(int32_t index, heed_op_info *info);

#ifdef __cplusplus
}
#endif

#include "layer.h"
#include "ops.h"

#endif
