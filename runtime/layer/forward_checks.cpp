// What a forward call must fulfil before anything is computed.
#include <algorithm>
#include <cinttypes>
#include <utility>

#include "runtime/layer/cache.h"
#include "runtime/layer/forward.h"
#include "runtime/ranges.h"
#include "runtime/read_once.h"
#include "runtime/scratch.h"

namespace heed {
namespace {

// Where k and v come from.
heed_status check_source(const Forward &f) {
    const heed_layer_config &c = f.config();
    const heed_layer_args &a = f.a;
    if (!c.cross && a.context.data != nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "context is not NULL; a self attention layer attends to x");
    }
    if (c.cross && a.cache != nullptr && a.context.data != nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "cache and context are both given; cross attention takes one of them");
    }
    const bool no_tokens = a.batch == 0 || a.q_len == 0 || a.context_len == 0;
    if (c.cross && a.cache == nullptr && a.context.data == nullptr && !no_tokens) {
        return fail(HEED_INVALID_ARGUMENT, "cache and context are NULL; cross attention takes one of them");
    }
    if (a.cache == nullptr) return HEED_OK;
    if (a.kv_lens != nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "kv_lens is not NULL; a cache has lengths of its own");
    }
    if (a.cache->batch != a.batch) {
        return fail(HEED_INVALID_ARGUMENT, "cache has %d sequences; batch is %d", a.cache->batch, a.batch);
    }
    return check_cache_of(f.layer, *a.cache);
}

// What packed tokens come without.
heed_status check_packed(const Forward &f) {
    const heed_layer_args &a = f.a;
    if (!f.packed()) return HEED_OK;
    if (f.config().cross) {
        return fail(HEED_INVALID_ARGUMENT, "cu_seqlens is not NULL; it must be NULL in a layer of cross attention");
    }
    const std::pair<const char *, const void *> others[] = {{"cache", a.cache},
                                                            {"q_lens", a.q_lens},
                                                            {"kv_lens", a.kv_lens},
                                                            {"key_padding", a.key_padding.data},
                                                            {"probs", a.probs.data}};
    for (const auto &[name, value] : others) {
        if (value == nullptr) continue;
        return fail(HEED_INVALID_ARGUMENT, "%s is not NULL; with cu_seqlens it must be NULL", name);
    }
    return HEED_OK;
}

// The call's lengths, which are read.
heed_status add_lengths(const heed_layer_args &a, MemoryRanges *ranges) {
    heed_status status = HEED_OK;
    if (a.q_lens != nullptr) status = ranges->add("q_lens", a.q_lens, a.batch, 4, Access::read);
    if (!status && a.kv_lens != nullptr) status = ranges->add("kv_lens", a.kv_lens, a.batch, 4, Access::read);
    if (!status && a.cu_seqlens != nullptr) {
        status = ranges->add("cu_seqlens", a.cu_seqlens, int64_t{a.batch} + 1, 4, Access::read);
    }
    return status;
}

// Reads each prefix sum once, into the private copy; the lengths between them too.
heed_status read_packed_lengths(const heed_layer_args &a, const LayerMemory &m) {
    int32_t end = 0;
    for (int32_t b = 0; b <= a.batch; b++) {
        const int32_t next = read_once(a.cu_seqlens[b]);
        if (b == 0 && next != 0) return fail(HEED_INVALID_ARGUMENT, "cu_seqlens[0] is %d; it must be 0", next);
        if (next < end || next - end > a.q_len) {
            return fail(HEED_INVALID_ARGUMENT, "cu_seqlens[%d] is %d after %d; it must grow by 0..%d, which is q_len",
                        b, next, end, a.q_len);
        }
        if (b > 0) m.new_lens[b - 1] = m.kv_lens[b - 1] = next - end;
        m.cu_seqlens[b] = end = next;
    }
    return HEED_OK;
}

// Memory for the joined mask, after the layer's own.
heed_status find_combined(Forward *f) {
    const int64_t lines = int64_t{f->a.batch} * f->combined_heads() * f->combined_rows();
    const auto given = static_cast<int64_t>(std::min<size_t>(f->a.execution.workspace_bytes, INT64_MAX));
    int64_t needed = 0;
    if (!checked_mul(lines, f->longest, &f->sizes.combined) ||
        !checked_add(f->sizes.combined, scratch_alignment - 1, &f->sizes.combined)) {
        f->sizes.combined = INT64_MAX;
    }
    f->sizes.combined = f->backend().workspace_share(f->sizes.combined / scratch_alignment * scratch_alignment);
    if (checked_add(f->sizes.combined, static_cast<int64_t>(f->layer.workspace_bytes), &needed) && needed <= given) {
        return HEED_OK;
    }
    return fail(
        HEED_WORKSPACE_TOO_SMALL,
        "execution.workspace_bytes is %zu; on CUDA mask, key_padding and bias together need the layer's %zu and "
        "%" PRId64 " more",
        f->a.execution.workspace_bytes, f->layer.workspace_bytes, f->sizes.combined);
}

// Mask and bias, of the elements that their shapes and layouts reach.
heed_status add_scores(const Forward &f, MemoryRanges *ranges) {
    const heed_layer_args &a = f.a;
    const Shape shape = {{a.batch, f.config().num_heads, a.q_len, f.longest}};
    View view;
    heed_status status = HEED_OK;
    if (a.mask.data != nullptr) {
        status = make_broadcast_view("mask", shape, a.mask_shape, a.mask_layout, &view);
        if (!status) status = ranges->add("mask", a.mask, HEED_U8, view.span, Access::read);
    }
    if (status || a.bias.data == nullptr) return status;
    if (a.bias.dtype != HEED_F32 && a.bias.dtype != f.config().dtype) {
        return fail(HEED_INVALID_ARGUMENT, "bias.dtype is %s (%d); it must be f32 (0) or the layer's, which is %s (%d)",
                    dtype_name(a.bias.dtype), static_cast<int>(a.bias.dtype), dtype_name(f.config().dtype),
                    static_cast<int>(f.config().dtype));
    }
    status = make_broadcast_view("bias", shape, a.bias_shape, a.bias_layout, &view);
    return status ? status : ranges->add("bias", a.bias, a.bias.dtype, view.span, Access::read);
}

}  // namespace

heed_status read_lens(const char *name, const int32_t *lens, int32_t batch, int32_t most, int32_t *copy) {
    for (int32_t b = 0; b < batch; b++) {
        copy[b] = lens == nullptr ? most : read_once(lens[b]);
        if (copy[b] >= 0 && copy[b] <= most) continue;
        return fail(HEED_INVALID_ARGUMENT, "%s[%d] is %d; it must be 0..%d", name, b, copy[b], most);
    }
    return HEED_OK;
}

heed_status check_workspace(size_t needed, const heed_execution &execution) {
    if (execution.workspace == nullptr) {
        return fail(HEED_INVALID_ARGUMENT, "execution.workspace is NULL; it must point to %zu bytes", needed);
    }
    if (reinterpret_cast<uintptr_t>(execution.workspace) % scratch_alignment != 0) {
        return fail(HEED_INVALID_ARGUMENT, "execution.workspace is at %p; it must be aligned to %d bytes",
                    execution.workspace, static_cast<int>(scratch_alignment));
    }
    if (execution.workspace_bytes >= needed) return HEED_OK;
    return fail(HEED_WORKSPACE_TOO_SMALL, "execution.workspace_bytes is %zu; the layer needs %zu",
                execution.workspace_bytes, needed);
}

heed_status add_workspace(const heed_layer &layer, const heed_execution &execution, int64_t more,
                          MemoryRanges *ranges) {
    const int64_t bytes = static_cast<int64_t>(layer.workspace_bytes) + more;
    return ranges->add("workspace", execution.workspace, bytes, 1, Access::write);
}

heed_status check_run(const heed_layer &layer, const heed_execution &execution) {
    const heed_status status = check_execution(&execution);
    if (status) return status;
    if (execution.device != layer.config.device) {
        return fail(HEED_INVALID_ARGUMENT, "execution.device is %s; it must be the layer's, which is %s",
                    device_name(execution.device), device_name(layer.config.device));
    }
    if (execution.num_threads <= layer.config.max_threads) return HEED_OK;
    return fail(HEED_INVALID_ARGUMENT, "execution.num_threads is %d; it must be 0 or 1..%d, the layer's max_threads",
                execution.num_threads, layer.config.max_threads);
}

heed_status check_sizes(const Forward &f) {
    const heed_layer_config &c = f.config();
    heed_status status = check_run(f.layer, f.a.execution);
    if (!status) status = check_flag("training", &f.a.training);
    if (!status) status = check_int("batch", f.a.batch, 0, c.max_batch);
    if (!status) status = check_int("q_len", f.a.q_len, 0, c.max_q_len);
    if (!status && c.cross && f.a.cache == nullptr) status = check_int("context_len", f.a.context_len, 0, c.max_kv_len);
    if (!status) status = check_packed(f);
    return status ? status : check_source(f);
}

heed_status read_lengths(const Forward &f, const LayerMemory &m) {
    const heed_layer_args &a = f.a;
    MemoryRanges ranges;
    heed_status status = add_workspace(f.layer, a.execution, f.gradient_bytes, &ranges);
    if (!status) status = add_lengths(a, &ranges);
    if (!status) std::fill_n(m.past, a.batch, 0);
    if (!status && f.packed()) return read_packed_lengths(a, m);
    if (!status) status = read_lens("q_lens", a.q_lens, a.batch, a.q_len, m.new_lens);
    if (status) return status;
    if (a.cache != nullptr) {
        return read_lens("cache's kv_lens", a.cache->kv_lens.data(), a.batch, a.cache->capacity, m.past);
    }
    return read_lens("kv_lens", a.kv_lens, a.batch, f.config().cross ? a.context_len : a.q_len, m.kv_lens);
}

heed_status resolve_sizes(Forward *f, const LayerMemory &m) {
    const heed_layer_args &a = f->a;
    const heed_layer_config &c = f->config();
    int32_t last = 0;  // tokens of the longest sequence
    for (int32_t b = 0; b < a.batch; b++) {
        const int64_t total = c.cross ? m.past[b] : int64_t{m.past[b]} + m.new_lens[b];
        if (a.cache != nullptr && total > a.cache->capacity) {
            return fail(HEED_INVALID_ARGUMENT, "sequence %d would have %" PRId64 " tokens; the cache's capacity is %d",
                        b, total, a.cache->capacity);
        }
        last = std::max(last, static_cast<int32_t>(total));
    }
    if (c.rotary_dim > 0 && last > c.max_position) {
        return fail(HEED_INVALID_ARGUMENT, "the tokens are at 0..%d; the layer's max_position is %d", last - 1,
                    c.max_position);
    }
    f->longest = a.cache != nullptr ? last : c.cross ? a.context_len : a.q_len;
    const int32_t new_tokens = !c.cross ? a.q_len : a.cache == nullptr ? a.context_len : 0;
    f->sizes = {a.batch, a.q_len, f->longest, new_tokens};
    f->line_len = f->packed() ? m.cu_seqlens[a.batch] : a.q_len;
    return f->combines_masks() ? find_combined(f) : HEED_OK;
}

heed_status check_tensors(const Forward &f) {
    const heed_layer_config &c = f.config();
    const heed_layer_args &a = f.a;
    const int64_t scores = f.tokens() * c.num_heads * f.longest;
    MemoryRanges ranges;
    heed_status status = ranges.add("y", a.y, c.dtype, f.tokens() * c.dim_out, Access::write);
    if (!status && a.probs.data != nullptr) {
        const heed_dtype dtype = a.probs.dtype == HEED_F32 ? HEED_F32 : c.dtype;
        status = ranges.add("probs", a.probs, dtype, scores, Access::write);
    }
    return status ? status : add_inputs(f, &ranges);
}

heed_status add_inputs(const Forward &f, MemoryRanges *ranges) {
    const heed_layer_config &c = f.config();
    const heed_layer_args &a = f.a;
    heed_status status = add_workspace(f.layer, a.execution, f.sizes.combined + f.gradient_bytes, ranges);
    if (!status) status = add_lengths(a, ranges);
    if (!status) status = ranges->add("x", a.x, c.dtype, f.tokens() * c.dim_in, Access::read);
    if (!status && a.context.data != nullptr) {
        status =
            ranges->add("context", a.context, c.dtype, int64_t{a.batch} * a.context_len * c.dim_context, Access::read);
    }
    if (!status && a.key_padding.data != nullptr) {
        status = ranges->add("key_padding", a.key_padding, HEED_U8, int64_t{a.batch} * f.longest, Access::read);
    }
    return status ? status : add_scores(f, ranges);
}

}  // namespace heed
