#include "runtime/validate.h"

#include <cinttypes>
#include <cmath>
#include <cstring>

#include "heed/fields.h"
#include "runtime/backend.h"
#include "runtime/ranges.h"
#include "runtime/status.h"

namespace heed {
namespace {

// Does not compile when the lists lack a field of heed_problem or have one twice.
[[maybe_unused]] void expect_every_field(const heed_problem &problem) {
#define HEED_NAME(name, ...) , name
    [[maybe_unused]] const auto &[struct_size HEED_PROBLEM_FIELDS(HEED_NAME) HEED_OTHER_FIELDS(HEED_NAME)] = problem;
#undef HEED_NAME
}

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

heed_status check_ranges(const heed_problem &p) {
    heed_status status = HEED_OK;
#define HEED_CHECK(name, ...)                                                                                          \
    if (!status) status = check_field(#name, p.name, __VA_ARGS__);
    HEED_PROBLEM_FIELDS(HEED_CHECK)
#undef HEED_CHECK
    return status;
}

heed_status check_types(const heed_problem &p) {
    if (p.kv_dtype != p.dtype && p.kv_dtype != HEED_I8) {
        return invalid_dtype("kv_dtype", p.kv_dtype, "dtype or HEED_I8 (3)");
    }
    if (p.has_bias && p.bias_dtype != HEED_F32 && p.bias_dtype != p.dtype) {
        return invalid_dtype("bias_dtype", p.bias_dtype, "HEED_F32 (0) or dtype");
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
    if (p.kv_storage == HEED_KV_PAGED && p.page_size < 1) return invalid_int("page_size", p.page_size, "at least 1");
    if (p.num_heads < p.num_kv_heads || p.num_heads % p.num_kv_heads != 0) {
        return fail(HEED_INVALID_ARGUMENT,
                    "num_heads is %d; it must be a positive multiple of num_kv_heads, which is %d", p.num_heads,
                    p.num_kv_heads);
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

}  // namespace

heed_status check_problem(const heed_problem *problem, heed_problem *copy, ProblemViews *views) {
    heed_status status = copy_problem(problem, copy);
    if (!status) status = check_ranges(*copy);
    if (!status) status = check_types(*copy);
    if (!status) status = check_storage(*copy);
    if (!status) status = check_dims(*copy);
    return status ? status : check_views(*copy, views);
}

bool is_empty_problem(const heed_problem &problem) { return problem.batch == 0 || problem.max_q_len == 0; }

bool needs_no_kernel(const heed_problem &problem, const ProblemViews &views) {
    return backend_of(problem.device).needs_no_kernel(problem, views);
}

}  // namespace heed
