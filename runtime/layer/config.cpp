// A layer's config: defaults and checks.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "heed/fields.h"
#include "runtime/cpu.h"
#include "runtime/layer/layer.h"
#include "runtime/ranges.h"
#include "runtime/validate.h"

namespace heed {
namespace {

heed_status check_flags(const heed_layer_config &c) {
    heed_status status = check_flag("cross", &c.cross);
    return status ? status : check_flag("rope_interleaved", &c.rope_interleaved);
}

heed_status check_logit_fields(const heed_layer_config &c) {
    heed_status status = HEED_OK;
#define HEED_CHECK(name, ...)                                                                                          \
    if (!status) status = check_field(#name, c.name, __VA_ARGS__);
    HEED_LOGIT_FIELDS(HEED_CHECK)
#undef HEED_CHECK
    return status;
}

heed_status check_heads(heed_layer_config *c) {
    heed_status status = check_int("num_heads", c->num_heads, 1, INT32_MAX);
    if (!status) status = check_int("num_kv_heads", c->num_kv_heads, 1, INT32_MAX);
    if (status) return status;
    if (c->num_heads % c->num_kv_heads != 0) {
        return fail(HEED_INVALID_ARGUMENT, "num_heads is %d; it must be a multiple of num_kv_heads, which is %d",
                    c->num_heads, c->num_kv_heads);
    }
    if (c->head_dim == 0) {
        if (c->dim_in % c->num_heads != 0) {
            return fail(HEED_INVALID_ARGUMENT,
                        "dim_in is %d; with head_dim 0 it must be a multiple of num_heads, which is %d", c->dim_in,
                        c->num_heads);
        }
        c->head_dim = c->dim_in / c->num_heads;
    }
    if (c->head_dim_v == 0) c->head_dim_v = c->head_dim;
    status = check_int("head_dim", c->head_dim, 1, max_head_dim);
    return status ? status : check_int("head_dim_v", c->head_dim_v, 1, max_head_dim);
}

heed_status check_dims(heed_layer_config *c) {
    if (c->dim_context == 0) c->dim_context = c->dim_in;
    if (c->dim_out == 0) c->dim_out = c->dim_in;
    if (!c->cross) c->max_kv_len = std::max(c->max_kv_len, c->max_q_len);
    heed_status status = check_int("dim_in", c->dim_in, 1, INT32_MAX);
    if (!status) status = check_int("dim_context", c->dim_context, 1, INT32_MAX);
    if (!status) status = check_int("dim_out", c->dim_out, 1, INT32_MAX);
    if (!status) status = check_heads(c);
    if (!status) status = check_int("max_batch", c->max_batch, 1, INT32_MAX);
    if (!status) status = check_int("max_q_len", c->max_q_len, 1, INT32_MAX);
    if (!status) status = check_int("max_kv_len", c->max_kv_len, 1, INT32_MAX);
    if (!status && !c->cross && c->dim_context != c->dim_in) {
        return fail(HEED_INVALID_ARGUMENT, "dim_context is %d in self attention; it must be 0 or dim_in, which is %d",
                    c->dim_context, c->dim_in);
    }
    return status;
}

heed_status check_forms(const heed_layer_config &c) {
    heed_status status = check_int("weight_layout", c.weight_layout, HEED_WEIGHTS_SEPARATE, HEED_WEIGHTS_EINSUM);
    if (!status) status = check_int("position", c.position, HEED_TOP_LEFT, HEED_BOTTOM_RIGHT);
    if (!status) status = check_int("qk_norm", c.qk_norm, HEED_QK_NORM_NONE, HEED_QK_NORM_HEAD);
    if (status) return status;
    if (c.cross && c.weight_layout == HEED_WEIGHTS_FUSED) {
        return fail(HEED_INVALID_ARGUMENT, "weight_layout is HEED_WEIGHTS_FUSED with cross; it must be "
                                           "HEED_WEIGHTS_SEPARATE or HEED_WEIGHTS_EINSUM");
    }
    if (!(c.clip_qkv >= 0)) {
        return fail(HEED_INVALID_ARGUMENT, "clip_qkv is %g; it must be 0 (off) or positive",
                    static_cast<double>(c.clip_qkv));
    }
    if (!(c.qk_norm_epsilon >= 0) || std::isinf(c.qk_norm_epsilon)) {
        return fail(HEED_INVALID_ARGUMENT, "qk_norm_epsilon is %g; it must be finite, 0 or more",
                    static_cast<double>(c.qk_norm_epsilon));
    }
    if (c.rotary_dim == 0) return HEED_OK;
    if (c.rotary_dim < 0 || c.rotary_dim % 2 != 0 || c.rotary_dim > c.head_dim) {
        return fail(HEED_INVALID_ARGUMENT, "rotary_dim is %d; it must be even and 0..%d, the head_dim", c.rotary_dim,
                    c.head_dim);
    }
    if (c.cross) return fail(HEED_INVALID_ARGUMENT, "rotary_dim is %d with cross; it must be 0", c.rotary_dim);
    return check_int("max_position", c.max_position, 1, INT32_MAX);
}

// What attention itself checks.
heed_status check_attention(const heed_layer_config &c) {
    heed_problem p, copy;
    ProblemViews views;
    init_problem(c, &p);
    p.dropout_p = c.dropout_p;
    return check_problem(&p, &copy, &views);
}

}  // namespace

void init_problem(const heed_layer_config &c, heed_problem *p) {
    heed_problem_init(p);
    p->device = c.device;
    p->dtype = p->kv_dtype = c.dtype;
    p->batch = c.max_batch;
    p->num_heads = c.num_heads;
    p->num_kv_heads = c.num_kv_heads;
    p->head_dim = c.head_dim;
    p->head_dim_v = c.head_dim_v;
    p->max_q_len = c.max_q_len;
    p->max_kv_len = c.max_kv_len;
#define HEED_COPY(name, ...) p->name = c.name;
    HEED_LOGIT_FIELDS(HEED_COPY)
#undef HEED_COPY
    p->max_threads = c.max_threads;
}

heed_status resolve_config(const heed_layer_config &config, heed_layer_config *c) {
    heed_status status =
        check_struct_size("heed_layer_config", config.struct_size, sizeof(heed_layer_config), "heed_layer_config_init");
    if (!status) status = check_flags(config);
    if (!status) status = check_logit_fields(config);
    if (status) return status;
    std::memcpy(c, &config, sizeof(config));
    status = check_float_dtype("dtype", c->dtype);
    if (!status && c->max_kv_len < 0) status = check_int("max_kv_len", c->max_kv_len, 0, INT32_MAX);
    if (!status) status = check_dims(c);
    if (!status) status = check_forms(*c);
    if (!status) status = check_attention(*c);
    if (c->max_threads == 0) c->max_threads = std::min(cpu_count(), max_thread_limit);
    return status;
}

}  // namespace heed

extern "C" heed_status heed_layer_config_init(heed_layer_config *config) {
    if (config == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_layer_config_init: config is NULL");
    std::memset(config, 0, sizeof(*config));
    config->struct_size = sizeof(*config);
#define HEED_SET(name, initial, ...) config->name = initial;
    HEED_LOGIT_FIELDS(HEED_SET)
#undef HEED_SET
    config->position = HEED_BOTTOM_RIGHT;
    config->qk_norm_epsilon = 1e-5f;
    return HEED_OK;
}
