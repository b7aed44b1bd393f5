/** @file
 * Types that every part of the Heed API shares. Include <heed/heed.h>, which includes this file. C99 and C++17. */
#ifndef HEED_TYPES_H
#define HEED_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** What the library exports. */
#if defined(__GNUC__)
#define HEED_API __attribute__((visibility("default")))
#else
#define HEED_API
#endif

/** Every enum is 32 bits wide and may hold any value (values come from untrusted callers and are checked). */
#ifdef __cplusplus
#define HEED_ENUM_WIDTH : int32_t
extern "C" {
#else
#define HEED_ENUM_WIDTH
#endif

/** What a call answers. The values are part of the ABI. Any status but HEED_OK leaves outputs, caches and lengths
 * untouched, and heed_last_error() holds one sentence: the field, its value, the allowed set. */
typedef enum heed_status HEED_ENUM_WIDTH {
    HEED_OK = 0,
    HEED_INVALID_ARGUMENT = 1, /**< the call breaks a rule of this header */
    HEED_UNSUPPORTED = 2,      /**< legal, but no kernel here serves it; the message says why, per candidate */
    HEED_WORKSPACE_TOO_SMALL = 3,
    HEED_NO_DEVICE = 4, /**< the asked device or its driver is missing */
    HEED_OUT_OF_MEMORY = 5,
    HEED_INTERNAL = 6 /**< a kernel failed; the message carries its code and sentence */
} heed_status;

/** Element types. f16 and bf16 elements are uint16_t bit patterns. */
typedef enum heed_dtype HEED_ENUM_WIDTH {
    HEED_F32 = 0,
    HEED_F16 = 1,
    HEED_BF16 = 2,
    HEED_I8 = 3, /**< K/V codes with f32 scales: x = code * scale */
    HEED_U8 = 4, /**< boolean masks: 0 is false, any other value is true */
    HEED_I32 = 5
} heed_dtype;

/** Where tensors are and kernels run. */
typedef enum heed_device HEED_ENUM_WIDTH { HEED_CPU = 0, HEED_CUDA = 1 } heed_device;

/** The position p(i) of query i of sequence b among the keys. Causal, window and ALiBi all use it. kv_len and q_len are
 * the sequence's own. */
typedef enum heed_position HEED_ENUM_WIDTH {
    HEED_TOP_LEFT = 0,     /**< p(i) = i */
    HEED_BOTTOM_RIGHT = 1, /**< p(i) = i + kv_len - q_len */
    HEED_EXPLICIT = 2      /**< p(i) = i + q_offsets[b]; offsets may be negative */
} heed_position;

/** The layout of the queries of a batch in memory. */
typedef enum heed_q_storage HEED_ENUM_WIDTH {
    HEED_Q_DENSE = 0, /**< [batch, q_len, num_heads, head_dim] */
    HEED_Q_VARLEN = 1 /**< [total_q, num_heads, head_dim] with cu_seqlens_q */
} heed_q_storage;

/** The layout of keys and values in memory. */
typedef enum heed_kv_storage HEED_ENUM_WIDTH {
    HEED_KV_CONTIGUOUS = 0, /**< [batch, max_kv_len, num_kv_heads, head_dim], kv_lens optional */
    HEED_KV_VARLEN = 1,     /**< [total_kv, num_kv_heads, head_dim] with cu_seqlens_kv */
    HEED_KV_PAGED = 2       /**< [num_pages, page_size, num_kv_heads, head_dim] with page_table and kv_lens */
} heed_kv_storage;

/** Strides in elements, in the documented index order of the tensor (innermost last).
 * All four zero: packed, that is row-major without gaps. Else stride[3] must be 1, the others >= 0 (0 broadcasts an
 * input); strides of extent-1 dimensions are ignored. Outputs may not overlap themselves. */
typedef struct heed_layout {
    int64_t stride[4];
} heed_layout;

/** A typed view of the caller's memory. The caller owns it and keeps it alive during the call.
 * `size` counts the elements from `data` on that Heed may touch (the stated capacity); no layout reaches beyond it.
 * `data` is aligned to its element. NULL is fine where the tensor is empty or not used by the problem. */
typedef struct heed_tensor {
    void *data;
    int64_t size;
    heed_dtype dtype;
} heed_tensor;

/** A caller's thread pool. */
typedef struct heed_parallel_for {
    /** Must call item(item_context, i) exactly once for every i in 0..num_items-1, on any threads, in any order, and
     * return when all calls have returned. Items never wait for one another. */
    void (*run)(void *context, int32_t num_items, void (*item)(void *item_context, int32_t index), void *item_context);
    void *context;
} heed_parallel_for;

#ifdef __cplusplus
}
#endif
#endif
