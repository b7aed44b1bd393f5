// What a forward call hands to attention: its problem, lengths, positions, masks and biases.
#include <algorithm>

#include "runtime/layer/cache.h"
#include "runtime/layer/forward.h"
#include "runtime/ops/steps.h"
#include "runtime/view.h"

namespace heed {
namespace {

// as_long_as_it_is: max_kv_len is the longest sequence's length, not the capacity, for which one plan serves all
// lengths.
void set_cache_shape(const heed_cache &cache, bool as_long_as_it_is, int32_t longest, heed_problem *p) {
    const heed_kv_view view = cache.view();
    p->kv_dtype = cache.dtype;
    p->max_kv_len = as_long_as_it_is ? longest : cache.capacity;
    p->has_kv_lens = true;
    // Scales are packed by max_kv_len; by a page's length, which stays the capacity, where each sequence is a page.
    const bool sequences_are_pages = as_long_as_it_is && cache.dtype == HEED_I8 && cache.storage == HEED_KV_CONTIGUOUS;
    p->kv_storage = sequences_are_pages ? HEED_KV_PAGED : cache.storage;
    p->num_pages = sequences_are_pages ? cache.batch : cache.num_pages;
    p->page_size = sequences_are_pages ? cache.capacity : cache.page_size;
    p->max_pages_per_seq = sequences_are_pages ? 1 : cache.max_pages_per_seq;
    p->k_layout = view.k_layout;
    p->v_layout = view.v_layout;
}

// Masks and biases as attention takes them: a key padding is a mask, with a mask a bias, with both a part of the
// mask.
void set_scores(const Forward &f, heed_problem *p) {
    const heed_layer_args &a = f.a;
    const bool padding = a.key_padding.data != nullptr, mask = a.mask.data != nullptr, bias = a.bias.data != nullptr;
    const int32_t per_key[4] = {0, 1, 1, 0};
    p->has_mask = mask || padding;
    p->has_bias = bias || (mask && padding);
    if (mask) {
        std::copy_n(a.mask_shape, 4, p->mask_shape);
        p->mask_layout = a.mask_layout;
        if (padding && bias) {
            p->mask_shape[0] = p->mask_shape[3] = 0;
            p->mask_layout = {};
        }
    } else if (padding) {
        std::copy_n(per_key, 4, p->mask_shape);
    }
    if (bias) {
        std::copy_n(a.bias_shape, 4, p->bias_shape);
        p->bias_layout = a.bias_layout;
        p->bias_dtype = a.bias.dtype;
    } else if (mask && padding) {
        std::copy_n(per_key, 4, p->bias_shape);
        p->bias_dtype = HEED_F32;
    }
}

// The mask that joins mask and key padding, or the padding alone as a bias.
heed_status pad_keys(Forward *f, const LayerMemory &m) {
    const heed_layer_args &a = f->a;
    const heed_layer_config &c = f->config();
    KeyPadding padding = {};
    padding.padding = a.key_padding.data;
    padding.heads = padding.rows = 1;
    padding.keys = f->longest;
    padding.lines = a.batch;
    padding.true_hides = c.mask_true_hides;
    if (!f->combines_masks()) {
        padding.as_bias = true;
        padding.out = m.padding;
        f->bias = {m.padding, int64_t{a.batch} * f->longest, HEED_F32};
        return f->backend().key_padding(a.execution, padding);
    }
    padding.mask = a.mask.data;
    padding.heads = f->combined_heads();
    padding.rows = f->combined_rows();
    padding.lines *= int64_t{padding.heads} * padding.rows;
    const int64_t elements = padding.lines * f->longest;
    const Shape shape = {{a.batch, c.num_heads, a.q_len, f->longest}};
    heed_status status = make_broadcast_view("mask", shape, a.mask_shape, a.mask_layout, &padding.view);
    if (!status && f->sizes.combined < elements) status = f->combined.allocate("heed_layer_forward", elements);
    if (status) return status;
    padding.out = f->sizes.combined < elements ? f->combined.data() : m.combined;
    f->mask = {padding.out, elements, HEED_U8};
    return f->backend().key_padding(a.execution, padding);
}

}  // namespace

heed_status make_plan(Forward *f) {
    const heed_layer_config &c = f->config();
    const heed_layer_args &a = f->a;
    heed_problem p;
    init_problem(c, &p);
    p.batch = a.batch;
    p.max_q_len = a.q_len;
    p.max_kv_len = f->longest;
#define HEED_USE(name, used, ...) p.used = !f->layer.name.empty();
    HEED_HEAD_ARRAYS(HEED_USE)
#undef HEED_USE
    p.has_kv_lens = a.kv_lens != nullptr || (!c.cross && a.q_lens != nullptr);
    p.want_lse = f->wants_lse;
    p.dropout_p = a.training ? c.dropout_p : 0;
    // New tokens follow the past ones; a query of cross attention is where its own length puts it.
    p.cuda_capability = f->layer.device.capability;
    p.position = c.position == HEED_TOP_LEFT ? HEED_TOP_LEFT : HEED_EXPLICIT;
    if (f->packed()) {
        p.q_storage = HEED_Q_VARLEN;
        p.kv_storage = HEED_KV_VARLEN;
        p.total_q = p.total_kv = f->line_len;
    }
    if (a.cache != nullptr) set_cache_shape(*a.cache, f->per_key() || p.dropout_p > 0, f->longest, &p);
    set_scores(*f, &p);
    return f->layer.plans.find(p, &f->plan);
}

void fill_lengths(const Forward &f, const LayerMemory &m) {
    const heed_layer_args &a = f.a;
    const bool cross = f.config().cross;
    for (int32_t b = 0; b < a.batch; b++) {
        const int32_t q_len = m.new_lens[b], past = m.past[b];
        if (a.cache != nullptr) {
            m.kv_lens[b] = cross ? past : past + q_len;
        } else if (!cross) {
            m.kv_lens[b] = std::min(m.kv_lens[b], q_len);
        }
        m.q_offsets[b] = cross ? m.kv_lens[b] - q_len : past;
        const int64_t first = f.packed() ? m.cu_seqlens[b] : int64_t{b} * a.q_len;
        const int32_t count = f.packed() ? q_len : a.q_len;
        for (int32_t t = 0; f.config().rotary_dim > 0 && t < count; t++) {
            // Tokens after the valid ones are rotated somehow: on CUDA neighbours go together.
            const int64_t position = std::min<int64_t>(int64_t{past} + t, f.config().max_position - 1);
            m.positions[first + t] = static_cast<int32_t>(position);
        }
    }
}

heed_status fill_scores(Forward *f, const LayerMemory &m) {
    const heed_layer_args &a = f->a;
    f->mask = a.mask;
    f->bias = a.bias;
    if (a.key_padding.data == nullptr) return HEED_OK;
    if (a.mask.data == nullptr) {
        f->mask = a.key_padding;
        return HEED_OK;
    }
    return pad_keys(f, m);
}

heed_args attention_args(const Forward &f, const LayerMemory &m) {
    const heed_layer_config &c = f.config();
    const heed_layer_args &a = f.a;
    const int64_t rows = f.tokens(), keys = f.new_tokens() * c.num_kv_heads;
    heed_args args;
    heed_args_init(&args);
    args.num_threads = a.execution.num_threads;
    args.pool = a.execution.pool;
    args.q = {m.q, rows * c.num_heads * c.head_dim, c.dtype};
    args.k = {m.k, keys * c.head_dim, c.dtype};
    args.v = {m.v, keys * c.head_dim_v, c.dtype};
    args.out = {m.attention, rows * c.num_heads * c.head_dim_v, c.dtype};
    if (a.cache != nullptr) {
        const heed_kv_view view = a.cache->view();
        args.k = view.k;
        args.v = view.v;
        args.k_scale = view.k_scale;
        args.v_scale = view.v_scale;
        args.page_table = view.page_table;
    }
    args.mask = f.mask;
    args.bias = f.bias;
    args.cu_seqlens_q = args.cu_seqlens_kv = m.cu_seqlens;
    args.kv_lens = m.kv_lens;
    args.q_offsets = m.q_offsets;
#define HEED_SET(name, ...) args.name = f.layer.name.data();
    HEED_HEAD_ARRAYS(HEED_SET)
#undef HEED_SET
    args.dropout_seed = a.dropout_seed;
    args.dropout_offset = a.dropout_offset;
    args.stream = a.execution.stream;
    args.workspace = m.plan;
    args.workspace_bytes = m.plan_bytes;
    return args;
}

}  // namespace heed
