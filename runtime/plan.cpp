#include "plan.h"

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "cpu.h"
#include "halide_bridge.h"
#include "kernel_call.h"
#include "status.h"
#include "tasks.h"
#include "workspace.h"

namespace heed {
namespace {

constexpr int64_t max_int32 = std::numeric_limits<int32_t>::max();

// Kernels index with 32 bits: Halide asks that extents, their products and extent * stride stay below 2^31.
heed_status check_kernel_limits(const char *name, const View &view) {
    int64_t elements = 1;
    for (int i = 3; i >= 0; i--) {
        int64_t reach = 0;
        const bool counts = checked_mul(elements, view.extent[i], &elements) && elements <= max_int32;
        const bool reaches = checked_mul(view.extent[i], view.stride[i], &reach) && reach <= max_int32;
        if (!counts || !reaches || view.span > max_int32) {
            return fail(HEED_UNSUPPORTED,
                        "%s of [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] %s 2^31-1 elements; no row serves "
                        "that",
                        name, view.extent[0], view.extent[1], view.extent[2], view.extent[3],
                        counts ? "reaches past" : "counts more than");
        }
    }
    return HEED_OK;
}

// Rows with a mask or bias index these two with 64 bits; only single strides stay 32 bits wide.
heed_status check_stride_limits(const char *name, const View &view) {
    for (int i = 0; i < 4; i++) {
        if (view.stride[i] > max_int32) {
            return fail(HEED_UNSUPPORTED, "%s_layout.stride[%d] is %" PRId64 "; no row serves strides past 2^31-1",
                        name, i, view.stride[i]);
        }
    }
    return HEED_OK;
}

heed_status check_page_table(const heed_problem &p) {
    if (p.kv_storage != HEED_KV_PAGED || int64_t{p.batch} * p.max_pages_per_seq <= max_int32) return HEED_OK;
    return fail(HEED_UNSUPPORTED, "page_table of [%d, %d] is beyond 2^31-1 elements; no row serves that", p.batch,
                p.max_pages_per_seq);
}

// Kernels add a query's index to a number of keys that its sequence has: pages hold that many at most.
heed_status check_lengths(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    int64_t most_keys = p.max_kv_len;
    if (p.kv_storage == HEED_KV_PAGED) most_keys = std::min(most_keys, int64_t{p.max_pages_per_seq} * p.page_size);
    if (p.max_q_len + most_keys > max_int32) {
        return fail(HEED_UNSUPPORTED, "max_q_len is %d for up to %" PRId64 " keys; together they must stay below 2^31",
                    p.max_q_len, most_keys);
    }
    if (plan.splits.num_splits * plan.splits.split_len > max_int32) {
        return fail(HEED_UNSUPPORTED, "max_kv_len is %d; in %d splits of whole blocks of keys it passes 2^31-1",
                    p.max_kv_len, plan.splits.num_splits);
    }
    return HEED_OK;
}

heed_status check_limits(const heed_plan &plan) {
    const ProblemViews &views = plan.views;
    if (is_empty_problem(plan.problem)) return HEED_OK;
    if (const heed_status status = check_page_table(plan.problem)) return status;
    if (needs_no_kernel(plan.problem, views)) return HEED_OK;
    const KernelViews kv = kernel_views(plan.problem, views);
    heed_status status = check_kernel_limits("q", views.q);
    if (!status) status = check_kernel_limits("k", kv.k);
    if (!status) status = check_kernel_limits("v", kv.v);
    if (!status) status = check_kernel_limits("out", views.out);
    if (!status) status = check_kernel_limits("lse", views.lse);
    if (!status && plan.problem.kv_dtype == HEED_I8) status = check_kernel_limits("k_scale", views.kv_scale);
    if (!status && plan.problem.has_mask) status = check_stride_limits("mask", views.mask);
    if (!status && plan.problem.has_bias) status = check_stride_limits("bias", views.bias);
    if (!status) status = check_lengths(plan);
    if (status) return status;
    if (max_tasks(plan.problem, *plan.row) < 0) {
        return fail(HEED_UNSUPPORTED,
                    "batch is %d, num_heads is %d, max_q_len is %d: their table of blocks of query rows is beyond "
                    "2^31-1 elements",
                    plan.problem.batch, plan.problem.num_heads, plan.problem.max_q_len);
    }
    return HEED_OK;
}

RowRequest request_of(const heed_problem &p) {
    uint32_t features = 0;
    if (p.has_bias) features |= feature_bias;
    if (p.has_mask) features |= feature_mask;
    if (p.softcap != 0) features |= feature_softcap;
    if (p.has_alibi) features |= feature_alibi;
    if (p.dropout_p != 0) features |= feature_dropout;
    const bool any_q_len = p.batch_invariant && p.q_storage == HEED_Q_VARLEN;
    return {p.dtype,  p.kv_dtype,   p.head_dim,  p.head_dim_v,
            features, p.kv_storage, p.max_q_len, p.num_heads / p.num_kv_heads,
            any_q_len};
}

void resolve_defaults(heed_problem *p) {
    if (std::isnan(p->scale)) p->scale = 1.0f / std::sqrt(static_cast<float>(p->head_dim));
    if (p->max_threads == 0) p->max_threads = std::min(cpu_count(), max_thread_limit);
}

std::string describe_plan(const heed_plan &plan, const RowChoice &choice) {
    const heed_problem &p = plan.problem;
    std::string text = std::string(plan.row->name) + ": " + choice.reason + "\n";
    if (needs_no_kernel(p, plan.views)) text += "empty problem: answered without a kernel\n";
    if (plan.row->phase == Phase::decode) {
        text += "splits: " + std::to_string(plan.splits.num_splits) + " of " + std::to_string(plan.splits.split_len) +
                " keys, from max_kv_len " + std::to_string(p.max_kv_len) +
                (p.num_splits > 0 ? " and num_splits " + std::to_string(p.num_splits) : "") + "\n";
    } else if (p.num_splits > 1) {
        text += "splits: 1, prefill rows do not split the keys (num_splits " + std::to_string(p.num_splits) + ")\n";
    }
    if (p.batch_invariant) text += "batch_invariant: row and splits do not depend on batch or other sequences\n";
    text += "workspace: " + std::to_string(plan.workspace.total) + " bytes for " + std::to_string(p.max_threads) +
            " threads (" + std::to_string(plan.workspace.slice_bytes) + " each)\n";
    if (plan.row->scratch_per_thread < 0) text += "scratch: from the heap, this row's need is not bounded\n";
    return text + "candidates:\n" + choice.candidates;
}

bool verbose() {
    const char *value = std::getenv("HEED_VERBOSE");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

heed_status create_plan(const heed_problem *problem, std::unique_ptr<heed_plan> *result) {
    auto plan = std::make_unique<heed_plan>();
    if (const heed_status status = validate_problem(problem, &plan->problem, &plan->views)) return status;
    resolve_defaults(&plan->problem);
    const RowChoice choice =
        choose_row(heed_kernel_table, request_of(plan->problem), machine_isas(), std::getenv("HEED_FORCE_KERNEL"));
    if (choice.row == nullptr) return fail(choice.status, "%s", choice.reason.c_str());
    plan->row = choice.row;
    plan->splits = choice.row->phase == Phase::decode
                       ? choose_splits(plan->problem.max_kv_len, choice.row->kv_block, plan->problem.num_splits)
                       : Splits{1, 0};
    if (const heed_status status = check_limits(*plan)) return status;
    if (!lay_out_workspace(plan.get())) {
        return fail(HEED_UNSUPPORTED, "the workspace of num_splits %d and max_threads %d is beyond 2^63-1 bytes",
                    plan->problem.num_splits, plan->problem.max_threads);
    }
    plan->explain = describe_plan(*plan, choice);
    install_halide_handlers();
    if (verbose()) std::fprintf(stderr, "heed: %s: %s\n", plan->row->name, choice.reason.c_str());
    *result = std::move(plan);
    return HEED_OK;
}

}  // namespace
}  // namespace heed

extern "C" {

heed_status heed_problem_init(heed_problem *problem) {
    if (problem == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_problem_init: problem is NULL");
    std::memset(problem, 0, sizeof(*problem));
    problem->struct_size = sizeof(*problem);
    problem->scale = std::numeric_limits<float>::quiet_NaN();
    problem->window_left = -1;
    problem->window_right = -1;
    return HEED_OK;
}

heed_status heed_plan_create(const heed_problem *problem, heed_plan **plan) {
    if (plan == nullptr) return heed::fail(HEED_INVALID_ARGUMENT, "heed_plan_create: plan is NULL");
    *plan = nullptr;
    try {
        std::unique_ptr<heed_plan> created;
        if (const heed_status status = heed::create_plan(problem, &created)) return status;
        *plan = created.release();
        return HEED_OK;
    } catch (const std::bad_alloc &) {
        return heed::fail(HEED_OUT_OF_MEMORY, "heed_plan_create: out of memory");
    } catch (const std::exception &error) {
        return heed::fail(HEED_INTERNAL, "heed_plan_create: %s", error.what());
    }
}

void heed_plan_destroy(heed_plan *plan) { delete plan; }

size_t heed_plan_workspace_bytes(const heed_plan *plan) {
    return plan == nullptr ? 0 : static_cast<size_t>(plan->workspace.total);
}

const char *heed_plan_kernel_name(const heed_plan *plan) { return plan == nullptr ? "" : plan->row->name; }

int32_t heed_plan_num_splits(const heed_plan *plan) { return plan == nullptr ? 0 : plan->splits.num_splits; }

const char *heed_plan_explain(const heed_plan *plan) { return plan == nullptr ? "" : plan->explain.c_str(); }

}  // extern "C"
