/** @file
 * Whole attention layers: projections, heads, masks, cache, output projection. Include <heed/heed.h>.
 *
 *     q = x Wq^T + bq, k = context Wk^T + bk, v = context Wv^T + bv     (context = x in self attention)
 *     clip, norm and RoPE as configured; K and V join the cache; attention as in heed.h
 *     y = concat(heads) Wo^T + bo
 *
 * num_kv_heads makes it multi-head, multi-query or grouped-query attention. A layer owns its packed weights and its
 * plans. forward allocates nothing once a shape has been seen, except for probs, for mask, key_padding and bias
 * together, for pages that are copied after a fork, and after more than 64 shapes. With masks, biases, probs and
 * dropout each length of a cache is a shape of its own. Layers are read-only in forward and may be shared by threads; a
 * cache belongs to one call at a time. A program whose kernel library lacks the kernels of linear, layer_norm or
 * attention that a layer needs gets HEED_UNSUPPORTED.
 *
 * CUDA (device HEED_CUDA): a layer lives in the CUDA context that is current when it is created, and so do its caches
 * and the streams of its calls; it is destroyed before that context. Weights are host memory: they are copied to memory
 * of the layer's on the device, and creation waits for that. The tensors of a call and its workspace are device memory;
 * arrays of int32 are host memory that forward has read when it returns. forward, prepare and backward only
 * launch on execution.stream: they wait for nothing, allocate nothing on the device (lists of lengths come from the
 * heap), and may be captured into a graph, which then holds the lengths: a replay writes the same slots of a cache
 * again. A cache's lengths and pages change when a call returns, its tensors when the stream gets there; copies of
 * heed_cache_fork and of shared pages run on the stream of the cache's last call, which must exist until then. */
#ifndef HEED_LAYER_H
#define HEED_LAYER_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Packed weights and the plans of the calls seen so far. */
typedef struct heed_layer heed_layer;
/** Keys and values of growing sequences. */
typedef struct heed_cache heed_cache;

/** The layout of the projection weights in memory. H = num_heads, G = num_kv_heads, D = head_dim, E = head_dim_v. */
typedef enum heed_weight_layout HEED_ENUM_WIDTH {
    HEED_WEIGHTS_SEPARATE = 0, /**< wq [H*D, dim_in], wk [G*D, dim_context], wv [G*E, dim_context], wo [dim_out, H*E] */
    HEED_WEIGHTS_FUSED = 1,    /**< wqkv [H*D + G*D + G*E, dim_in], wo [dim_out, H*E]; self attention only */
    HEED_WEIGHTS_EINSUM = 2 /**< wq [H, dim_in, D], wk [G, dim_context, D], wv [G, dim_context, E], wo [H, dim_out, E];
                               with G = 1 the leading axis of wk and wv may be left out */
} heed_weight_layout;

/** Normalisation of q and k before RoPE. */
typedef enum heed_qk_norm HEED_ENUM_WIDTH {
    HEED_QK_NORM_NONE = 0,
    HEED_QK_NORM_MODEL = 1, /**< layer norm of the whole q row (H*D) and k row (G*D) */
    HEED_QK_NORM_HEAD = 2   /**< layer norm of each head's D elements */
} heed_qk_norm;

/** What is fixed while a layer lives. */
typedef struct heed_layer_config {
    uint32_t struct_size; /**< set by heed_layer_config_init */
    heed_device device;   /**< a call's execution.device must be the same */
    heed_dtype dtype;     /**< activations and weights */
    int32_t dim_in;       /**< width of x */
    int32_t dim_context;  /**< width of context; 0 = dim_in */
    int32_t dim_out;      /**< width of y; 0 = dim_in */
    int32_t num_heads, num_kv_heads;
    int32_t head_dim;   /**< 0 = dim_in / num_heads, which must divide */
    int32_t head_dim_v; /**< 0 = head_dim */
    bool cross;         /**< K and V come from context, see heed_layer_prepare */
    heed_weight_layout weight_layout;

    float scale; /**< NaN = 1/sqrt(head_dim), the default; the MQA paper's functions use 1 */
    float temperature_growth;
    int32_t temperature_interval, temperature_shift;
    float softcap;
    heed_position position; /**< HEED_BOTTOM_RIGHT, the default: token t of x follows the cached ones, at past + t;
                             * in cross attention at kv_len - q_len + t. HEED_TOP_LEFT: at t (RoPE: at past + t) */
    bool causal;
    int32_t window_left, window_right;
    bool mask_true_hides; /**< for mask and key_padding alike: 1 = masked */
    bool alibi_symmetric;
    float dropout_p; /**< applied in training mode only */
    float clip_qkv;  /**< > 0 clamps q, k and v to [-clip_qkv, clip_qkv]; 0 = off */
    heed_qk_norm qk_norm;
    float qk_norm_epsilon; /**< default 1e-5 */
    int32_t rotary_dim;    /**< 0 = no RoPE; tables come with the weights */
    bool rope_interleaved;
    int32_t max_position; /**< rows of the RoPE tables */

    int32_t max_batch, max_q_len; /**< largest forward; with the next they fix the workspace */
    int32_t max_kv_len;           /**< tokens of the longest cache or context; at least max_q_len in self attention */
    int32_t max_threads;          /**< 0 = the CPUs of this process */
} heed_layer_config;

/** Sets struct_size and the defaults: zero, except scale NaN, window -1, position HEED_BOTTOM_RIGHT, epsilon 1e-5. */
HEED_API heed_status heed_layer_config_init(heed_layer_config *config);

/** Weights as the config's layout says, packed row-major in its dtype; size = element count, checked. data NULL where
 * the layer has no such weight (biases, norms, tables, slopes, sink). Biases: bq [H*D], bk [G*D], bv [G*E],
 * bqkv [H*D + G*D + G*E], bo [dim_out]. */
typedef struct heed_layer_weights {
    uint32_t struct_size;
    heed_tensor wq, wk, wv, wqkv, wo;
    heed_tensor bq, bk, bv, bqkv, bo;
    heed_tensor q_norm_weight, q_norm_bias, k_norm_weight, k_norm_bias; /**< [H*D] and [G*D], or [D] per head */
    heed_tensor rope_cos, rope_sin;                                     /**< f32 [max_position, rotary_dim / 2] */
    heed_tensor temperature, alibi_slopes, sink;                        /**< f32 [num_heads] */
} heed_layer_weights;

/** Checks all shapes (a message names both), packs the weights; the sources are not kept. *layer is the caller's. */
HEED_API heed_status heed_layer_create(const heed_layer_config *config, const heed_layer_weights *weights,
                                       heed_layer **layer);
/** Frees the layer. NULL is fine. No call of this layer may be running. */
HEED_API void heed_layer_destroy(heed_layer *layer);
/** Bytes that a call's execution.workspace needs, for the largest forward of the config. 0 for NULL. */
HEED_API size_t heed_layer_workspace_bytes(const heed_layer *layer);

/* ---- Caches --------------------------------------------------------------------------------------------------- */

/** A cache that owns its memory: contiguous [batch, capacity, num_kv_heads, .], or pages handed out on demand. */
typedef struct heed_cache_config {
    uint32_t struct_size;
    heed_kv_storage storage;      /**< HEED_KV_CONTIGUOUS or HEED_KV_PAGED */
    heed_dtype dtype;             /**< the layer's, or HEED_I8 */
    int32_t batch;                /**< sequences */
    int32_t capacity;             /**< tokens per sequence at most */
    int32_t num_pages, page_size; /**< paged */
} heed_cache_config;

/** A cache fits the layer that made it and layers of equal dtype, num_kv_heads and head dims; another layer's cache is
 * INVALID_ARGUMENT with both shapes. */
HEED_API heed_status heed_cache_create(const heed_layer *layer, const heed_cache_config *config, heed_cache **cache);
/** Frees the cache. NULL is fine. No call with this cache may be running. */
HEED_API void heed_cache_destroy(heed_cache *cache);

/** Forgets all tokens and pages. */
HEED_API heed_status heed_cache_reset(heed_cache *cache);

/** Forgets the tokens of sequence `sequence` from `kv_len` on. */
HEED_API heed_status heed_cache_truncate(heed_cache *cache, int32_t sequence, int32_t kv_len);

/** Sequence `to` becomes a copy of sequence `from`; pages are shared until written. */
HEED_API heed_status heed_cache_fork(heed_cache *cache, int32_t from, int32_t to);

/** Appends keys and values that were computed elsewhere (or read by heed_cache_view) to each sequence: its first
 * new_lens[b] (NULL: new_len) tokens of k_new and v_new [batch, new_len, num_kv_heads, head_dim or head_dim_v], of the
 * layer's dtype, already normalised and rotated. A NULL layout is packed, a NULL execution all zero; its
 * device is the cache's. As heed_kv_append, with pages handed out as heed_layer_forward does; a failed call leaves the
 * cache as it was. */
HEED_API heed_status heed_cache_append(heed_cache *cache, int32_t new_len, const int32_t *new_lens,
                                       const heed_tensor *k_new, const heed_layout *k_new_layout,
                                       const heed_tensor *v_new, const heed_layout *v_new_layout,
                                       const heed_execution *execution);

/** The cache's tensors, table and lengths, valid until the next call that changes the cache: "updated past". On CUDA
 * the tensors are device memory, table and lengths are not. */
HEED_API heed_status heed_cache_view(const heed_cache *cache, heed_kv_view *view);

/* ---- Forward -------------------------------------------------------------------------------------------------- */

/** Projects context [batch, context_len, dim_context] into the cache of a cross-attention layer, once for many steps;
 * what it held before is replaced. context_lens [batch] counts, or NULL. */
HEED_API heed_status heed_layer_prepare(const heed_layer *layer, heed_cache *cache, int32_t batch, int32_t context_len,
                                        const heed_tensor *context, const int32_t *context_lens,
                                        const heed_execution *execution);

/** One forward call. */
typedef struct heed_layer_args {
    uint32_t struct_size;
    int32_t batch, q_len;
    int32_t context_len;       /**< cross attention without a prepared cache */
    heed_tensor x;             /**< [batch, q_len, dim_in], packed; with cu_seqlens [total, dim_in] */
    heed_tensor context;       /**< [batch, context_len, dim_context], packed; data NULL with a prepared cache */
    heed_tensor y;             /**< [batch, q_len, dim_out], packed; with cu_seqlens [total, dim_out] */
    heed_cache *cache;         /**< NULL = no past; else the new tokens' K and V are appended first (self attention) */
    const int32_t *q_lens;     /**< [batch] valid tokens of x, or NULL = q_len; later rows of y and probs are zero, and
                                * later tokens are no keys */
    const int32_t *kv_lens;    /**< [batch] valid keys without a cache, or NULL: key padding on the right */
    const int32_t *cu_seqlens; /**< [batch + 1] or NULL: the sequences are end to end in x and y, without padding,
                                * sequence b in tokens cu_seqlens[b] to cu_seqlens[b + 1] - 1. First 0, growing by
                                * 0..q_len; the last is `total`. Results are bitwise those of the padded batch with
                                * q_lens, except that with window_left sums may be in another order. Self attention
                                * without cache; q_lens, kv_lens, key_padding and probs must be NULL; not for
                                * heed_layer_backward. Each `total` is a shape of its own */
    /* In the shapes below kv_len is that of the longest sequence, with the tokens of this call. */
    heed_tensor key_padding; /**< uint8 [batch, kv_len]: key padding anywhere; data NULL = none */
    heed_tensor mask;        /**< uint8, broadcast to [batch, num_heads, q_len, kv_len]; data NULL = none */
    int32_t mask_shape[4];   /**< each the full extent or 1; 0 = full */
    heed_layout mask_layout;
    heed_tensor bias; /**< f32 or the layer's dtype, added to the logits; as mask */
    int32_t bias_shape[4];
    heed_layout bias_layout;
    heed_tensor probs; /**< attention weights [batch, num_heads, q_len, kv_len] when asked, before dropout, in f32 or
                        * the layer's dtype; data NULL = not wanted. y is then their product with the values, whose
                        * last bits may be others than without */
    bool training;     /**< dropout on */
    uint64_t dropout_seed, dropout_offset;
    heed_execution execution; /**< with a workspace of heed_layer_workspace_bytes. On CUDA mask, key_padding and bias
                               * together need more: a byte for each element of the mask with all sequences and keys,
                               * rounded up to 128 */
} heed_layer_args;

/** A failed call leaves y, probs and the cache as they were (except for HEED_INTERNAL, after which y and probs may hold
 * anything). Errors: INVALID_ARGUMENT (another layer's cache, a mask that does not broadcast, with both shapes),
 * WORKSPACE_TOO_SMALL, UNSUPPORTED, OUT_OF_MEMORY (a paged cache has too few free pages), NO_DEVICE, INTERNAL. */
HEED_API heed_status heed_layer_forward(const heed_layer *layer, const heed_layer_args *args);

/** Gradients of one forward call, summed into the given tensors; data NULL = not wanted. */
typedef struct heed_layer_gradients {
    uint32_t struct_size;
    heed_tensor dy;                  /**< input, as y */
    heed_tensor dx, dcontext, dbias; /**< as x, context, bias */
    heed_layer_weights dweights;     /**< as the weights, each of the layer's dtype or f32; set its struct_size */
} heed_layer_gradients;

/** Bytes that a backward call's execution.workspace needs, for the largest call of the config: on the CPU those of a
 * forward call, on CUDA more. 0 for NULL. */
HEED_API size_t heed_layer_backward_workspace_bytes(const heed_layer *layer);

/** Gradients of heed_layer_forward with the same args, of which y and probs are not used: the activations are computed
 * anew from x and context. Calls without a cache; no gradients of slopes and RoPE tables. A clipped projection has
 * gradient 0: one that is not inside (-c, c) before the clip, both in the layer's type, c being clip_qkv (as
 * torch.clamp has it). Rows of x and dy after q_lens, and of context where kv_lens or key_padding hide it, are not read
 * as numbers; their gradients are 0. The bits depend neither on threads nor on repeats. Gradients of weights in f32
 * take the kernels of f32 on the CPU. Memory on the CPU: the workspace of a forward call, and from the heap a few times
 * the activations, the weights asked for and heed_attention_backward's workspace. On CUDA all of it is in the
 * workspace, which needs as much more as dbias spans, in bytes rounded up to 128, and what a forward call needs for
 * mask, key_padding and bias together; the call only launches, as forward does, and may be captured into a graph. A
 * failed call leaves the gradients as they were (except for HEED_INTERNAL). Errors: INVALID_ARGUMENT,
 * WORKSPACE_TOO_SMALL, UNSUPPORTED, OUT_OF_MEMORY, NO_DEVICE, INTERNAL. */
HEED_API heed_status heed_layer_backward(const heed_layer *layer, const heed_layer_args *args,
                                         const heed_layer_gradients *gradients);

/* ---- Weights from files, conversion --------------------------------------------------------------------------- */

/** A safetensors file, mapped read-only. Its header is untrusted: every offset and shape is checked. */
typedef struct heed_weights_file heed_weights_file;

/** Maps the file and checks its header. *file is the caller's, for heed_weights_close. */
HEED_API heed_status heed_weights_open(const char *path, heed_weights_file **file);
/** Closes the file and ends the life of the tensors found in it. NULL is fine. */
HEED_API void heed_weights_close(heed_weights_file *file);

/** The tensor called `name`: a read-only view that lives as long as the file, and its shape (rank at most 8).
 * INVALID_ARGUMENT: no such tensor. UNSUPPORTED: a dtype that Heed has not, more dimensions, or elements that are not
 * aligned in the file (writers of the format pad the header to 8 bytes). */
HEED_API heed_status heed_weights_find(const heed_weights_file *file, const char *name, heed_tensor *tensor,
                                       int64_t shape[8], int32_t *rank);

/** Mean-pools K and V head weights [num_heads * head_dim, dim] into [num_kv_heads * head_dim, dim], the start of GQA
 * uptraining. num_heads % num_kv_heads must be 0. */
HEED_API heed_status heed_mha_to_gqa(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t dim,
                                     const heed_tensor *mha_weight, const heed_tensor *gqa_weight);
/** The expansion, by the same rule: repeats each kv head group_size times. */
HEED_API heed_status heed_gqa_to_mha(int32_t num_heads, int32_t num_kv_heads, int32_t head_dim, int32_t dim,
                                     const heed_tensor *gqa_weight, const heed_tensor *mha_weight);

#ifdef __cplusplus
}
#endif
#endif
