#include "validate.h"

#include <cinttypes>
#include <cmath>
#include <cstring>

#include "backend.h"
#include "ranges.h"
#include "status.h"

namespace heed {
namespace {

struct Field {
    const char *name;
    size_t offset;
};

constexpr Field flag_fields[] = {
    {"causal", offsetof(heed_problem, causal)},
    {"has_mask", offsetof(heed_problem, has_mask)},
    {"mask_true_hides", offsetof(heed_problem, mask_true_hides)},
    {"has_bias", offsetof(heed_problem, has_bias)},
    {"has_sink", offsetof(heed_problem, has_sink)},
    {"has_alibi", offsetof(heed_problem, has_alibi)},
    {"alibi_symmetric", offsetof(heed_problem, alibi_symmetric)},
    {"has_kv_lens", offsetof(heed_problem, has_kv_lens)},
    {"want_lse", offsetof(heed_problem, want_lse)},
    {"batch_invariant", offsetof(heed_problem, batch_invariant)},
    {"metadata_on_device", offsetof(heed_problem, metadata_on_device)},
};

constexpr Field count_fields[] = {
    {"batch", offsetof(heed_problem, batch)},
    {"num_heads", offsetof(heed_problem, num_heads)},
    {"num_kv_heads", offsetof(heed_problem, num_kv_heads)},
    {"head_dim", offsetof(heed_problem, head_dim)},
    {"head_dim_v", offsetof(heed_problem, head_dim_v)},
    {"max_q_len", offsetof(heed_problem, max_q_len)},
    {"max_kv_len", offsetof(heed_problem, max_kv_len)},
    {"total_q", offsetof(heed_problem, total_q)},
    {"total_kv", offsetof(heed_problem, total_kv)},
    {"num_pages", offsetof(heed_problem, num_pages)},
    {"page_size", offsetof(heed_problem, page_size)},
    {"max_pages_per_seq", offsetof(heed_problem, max_pages_per_seq)},
    {"num_splits", offsetof(heed_problem, num_splits)},
    {"max_threads", offsetof(heed_problem, max_threads)},
    {"cuda_capability", offsetof(heed_problem, cuda_capability)},
};

heed_status invalid_int(const char *name, int64_t value, const char *allowed) {
    return fail(HEED_INVALID_ARGUMENT, "%s is %" PRId64 "; it must be %s", name, value, allowed);
}

heed_status copy_problem(const heed_problem *problem, heed_problem *copy) {
    if (problem == nullptr) return fail(HEED_INVALID_ARGUMENT, "problem is NULL");
    uint32_t struct_size = 0;
    std::memcpy(&struct_size, &problem->struct_size, sizeof(struct_size));
    const heed_status status =
        check_struct_size("heed_problem", struct_size, sizeof(heed_problem), "heed_problem_init");
    if (!status) std::memcpy(copy, problem, sizeof(heed_problem));
    return status;
}

heed_status check_enums(const heed_problem &p) {
    if (p.device != HEED_CPU && p.device != HEED_CUDA) {
        return invalid_int("device", p.device, "HEED_CPU (0) or HEED_CUDA (1)");
    }
    if (p.dtype != HEED_F32 && p.dtype != HEED_F16 && p.dtype != HEED_BF16) {
        return invalid_int("dtype", p.dtype, "HEED_F32 (0), HEED_F16 (1) or HEED_BF16 (2)");
    }
    if (p.kv_dtype != p.dtype && p.kv_dtype != HEED_I8) {
        return invalid_int("kv_dtype", p.kv_dtype, "dtype or HEED_I8 (3)");
    }
    if (p.has_bias && p.bias_dtype != HEED_F32 && p.bias_dtype != p.dtype) {
        return invalid_int("bias_dtype", p.bias_dtype, "HEED_F32 (0) or dtype");
    }
    if (p.position < HEED_TOP_LEFT || p.position > HEED_EXPLICIT) {
        return invalid_int("position", p.position, "HEED_TOP_LEFT (0), HEED_BOTTOM_RIGHT (1) or HEED_EXPLICIT (2)");
    }
    if (p.q_storage != HEED_Q_DENSE && p.q_storage != HEED_Q_VARLEN) {
        return invalid_int("q_storage", p.q_storage, "HEED_Q_DENSE (0) or HEED_Q_VARLEN (1)");
    }
    if (p.kv_storage < HEED_KV_CONTIGUOUS || p.kv_storage > HEED_KV_PAGED) {
        return invalid_int("kv_storage", p.kv_storage,
                           "HEED_KV_CONTIGUOUS (0), HEED_KV_VARLEN (1) or HEED_KV_PAGED (2)");
    }
    return HEED_OK;
}

// Flags come from untrusted memory: their bytes are looked at before any is read as a bool.
heed_status check_flags(const heed_problem &p) {
    for (const Field &field : flag_fields) {
        unsigned char byte = 0;
        std::memcpy(&byte, reinterpret_cast<const unsigned char *>(&p) + field.offset, 1);
        if (byte > 1) return invalid_int(field.name, byte, "0 or 1");
    }
    return HEED_OK;
}

heed_status check_storage(const heed_problem &p) {
    if (p.q_storage == HEED_Q_DENSE && p.kv_storage == HEED_KV_VARLEN) {
        return fail(HEED_INVALID_ARGUMENT, "kv_storage is HEED_KV_VARLEN with dense queries; it must be "
                                           "HEED_KV_CONTIGUOUS or HEED_KV_PAGED");
    }
    if (p.kv_storage == HEED_KV_VARLEN && p.has_kv_lens) {
        return fail(HEED_INVALID_ARGUMENT, "has_kv_lens is 1 with HEED_KV_VARLEN; it must be 0, cu_seqlens_kv tells");
    }
    if (p.metadata_on_device && p.device == HEED_CPU) {
        return fail(HEED_INVALID_ARGUMENT, "metadata_on_device is 1 with HEED_CPU; it must be 0");
    }
    if (p.kv_storage == HEED_KV_PAGED && !p.has_kv_lens) {
        return fail(HEED_INVALID_ARGUMENT, "has_kv_lens is 0 with HEED_KV_PAGED; it must be 1");
    }
    return HEED_OK;
}

heed_status check_dims(const heed_problem &p) {
    for (const Field &field : count_fields) {
        int32_t value = 0;
        std::memcpy(&value, reinterpret_cast<const unsigned char *>(&p) + field.offset, sizeof(value));
        if (value < 0) return invalid_int(field.name, value, "0..2147483647");
    }
    if (p.head_dim < 1) return invalid_int("head_dim", p.head_dim, "1..640");
    if (p.head_dim_v < 1) return invalid_int("head_dim_v", p.head_dim_v, "1..640");
    if (p.kv_storage == HEED_KV_PAGED && p.page_size < 1) return invalid_int("page_size", p.page_size, "at least 1");
    if (p.num_kv_heads < 1) return invalid_int("num_kv_heads", p.num_kv_heads, "at least 1");
    if (p.num_heads < p.num_kv_heads || p.num_heads % p.num_kv_heads != 0) {
        return fail(HEED_INVALID_ARGUMENT,
                    "num_heads is %d; it must be a positive multiple of num_kv_heads, which is %d", p.num_heads,
                    p.num_kv_heads);
    }
    if (p.max_threads > max_thread_limit) return invalid_int("max_threads", p.max_threads, "0..1024");
    return HEED_OK;
}

heed_status check_scalars(const heed_problem &p) {
    if (p.window_left < -1) return invalid_int("window_left", p.window_left, "-1 (unlimited) or 0..2147483647");
    if (p.window_right < -1) return invalid_int("window_right", p.window_right, "-1 (unlimited) or 0..2147483647");
    if (std::isinf(p.scale)) {
        return fail(HEED_INVALID_ARGUMENT, "scale is %g; it must be finite, or NaN for 1/sqrt(head_dim)",
                    static_cast<double>(p.scale));
    }
    if (!std::isfinite(p.softcap) || p.softcap < 0) {
        return fail(HEED_INVALID_ARGUMENT, "softcap is %g; it must be 0 (off) or finite and positive",
                    static_cast<double>(p.softcap));
    }
    if (!(p.dropout_p >= 0 && p.dropout_p <= 1)) {
        return fail(HEED_INVALID_ARGUMENT, "dropout_p is %g; it must be 0..1", static_cast<double>(p.dropout_p));
    }
    return HEED_OK;
}

Shape q_shape(const heed_problem &p, int32_t head_dim) {
    if (p.q_storage == HEED_Q_VARLEN) return {{1, p.total_q, p.num_heads, head_dim}};
    return {{p.batch, p.max_q_len, p.num_heads, head_dim}};
}

Shape kv_shape(const heed_problem &p, int32_t head_dim) {
    if (p.kv_storage == HEED_KV_VARLEN) return {{1, p.total_kv, p.num_kv_heads, head_dim}};
    if (p.kv_storage == HEED_KV_PAGED) return {{p.num_pages, p.page_size, p.num_kv_heads, head_dim}};
    return {{p.batch, p.max_kv_len, p.num_kv_heads, head_dim}};
}

Shape lse_shape(const heed_problem &p) {
    if (p.q_storage == HEED_Q_VARLEN) return {{1, p.num_heads, p.total_q, 1}};
    return {{p.batch, p.num_heads, p.max_q_len, 1}};
}

heed_status check_views(const heed_problem &p, ProblemViews *views) {
    const Shape score_shape = {{p.batch, p.num_heads, p.max_q_len, p.max_kv_len}};
    *views = ProblemViews{};
    heed_status status = make_view("q", q_shape(p, p.head_dim), p.q_layout, Access::read, &views->q);
    if (!status) status = make_view("k", kv_shape(p, p.head_dim), p.k_layout, Access::read, &views->k);
    if (!status) status = make_view("v", kv_shape(p, p.head_dim_v), p.v_layout, Access::read, &views->v);
    if (!status) status = make_view("out", q_shape(p, p.head_dim_v), p.out_layout, Access::write, &views->out);
    if (!status && p.want_lse) status = make_view("lse", lse_shape(p), p.lse_layout, Access::write, &views->lse);
    if (!status && p.has_mask) {
        status = make_broadcast_view("mask", score_shape, p.mask_shape, p.mask_layout, &views->mask);
    }
    if (!status && p.has_bias) {
        status = make_broadcast_view("bias", score_shape, p.bias_shape, p.bias_layout, &views->bias);
    }
    if (!status && p.dropout_p != 0) {
        View elements;  // that Philox counts
        status = make_view("dropout mask", score_shape, heed_layout{}, Access::read, &elements);
    }
    if (!status && p.kv_dtype == HEED_I8) {
        const Shape kv = kv_shape(p, 1);
        const Shape scales = {{1, kv.extent[0], kv.extent[1], kv.extent[2]}};
        status = make_view("k_scale", scales, heed_layout{}, Access::read, &views->kv_scale);
    }
    return status;
}

// What the contract allows and this version has no kernels for.
heed_status check_built(const heed_problem &p) {
    if (p.head_dim > max_head_dim || p.head_dim_v > max_head_dim) {
        return fail(HEED_UNSUPPORTED, "head_dim is %d and head_dim_v is %d; at most %d is supported", p.head_dim,
                    p.head_dim_v, max_head_dim);
    }
    return HEED_OK;
}

}  // namespace

heed_status check_problem(const heed_problem *problem, heed_problem *copy, ProblemViews *views) {
    heed_status status = copy_problem(problem, copy);
    if (!status) status = check_flags(*copy);
    if (!status) status = check_enums(*copy);
    if (!status) status = check_storage(*copy);
    if (!status) status = check_dims(*copy);
    if (!status) status = check_scalars(*copy);
    return status ? status : check_views(*copy, views);
}

heed_status validate_problem(const heed_problem *problem, heed_problem *copy, ProblemViews *views) {
    const heed_status status = check_problem(problem, copy, views);
    return status ? status : check_built(*copy);
}

bool is_empty_problem(const heed_problem &problem) { return problem.batch == 0 || problem.max_q_len == 0; }

bool needs_no_kernel(const heed_problem &problem, const ProblemViews &views) {
    return backend_of(problem.device).needs_no_kernel(problem, views);
}

}  // namespace heed
