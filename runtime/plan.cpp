#include "plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "backend.h"
#include "cpu.h"
#include "halide_bridge.h"
#include "heed/fields.h"
#include "kernel_call.h"
#include "plan_limits.h"
#include "status.h"
#include "workspace.h"

namespace heed {
namespace {

RowRequest request_of(const heed_problem &p) {
    const bool any_q_len = p.batch_invariant && p.q_storage == HEED_Q_VARLEN;
    return {p.device,
            p.dtype,
            p.kv_dtype,
            p.head_dim,
            p.head_dim_v,
            features_of(p),
            p.kv_storage,
            p.max_q_len,
            p.num_heads / p.num_kv_heads,
            any_q_len,
            p.score_mod == nullptr ? "" : p.score_mod};
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
    text += "workspace: " + std::to_string(plan.workspace.total) + " bytes " + backend_of(p.device).describe(plan);
    return text + "candidates:\n" + choice.candidates;
}

bool verbose() {
    const char *value = std::getenv("HEED_VERBOSE");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

heed_status create_plan(const heed_problem *problem, std::unique_ptr<heed_plan> *result) {
    if (const heed_status status = check_kernel_library()) return status;
    auto plan = std::make_unique<heed_plan>();
    if (const heed_status status = validate_problem(problem, &plan->problem, &plan->views)) return status;
    resolve_defaults(&plan->problem);
    const Backend &backend = backend_of(plan->problem.device);
    if (const heed_status status = backend.check_library()) return status;
    const uint32_t isas = backend.isas(plan->problem);
    const RowChoice choice =
        choose_row(heed_kernel_table, request_of(plan->problem), isas, std::getenv("HEED_FORCE_KERNEL"));
    if (choice.row == nullptr) return fail(choice.status, "%s", choice.reason.c_str());
    plan->row = choice.row;
    plan->problem.score_mod = choice.row->score_mod;  // which lives on
    plan->splits = choice.row->phase == Phase::decode
                       ? choose_splits(plan->problem.max_kv_len, choice.row->kv_block, plan->problem.num_splits)
                       : Splits{1, 0};
    if (const heed_status status = backend.find_kernels_around(plan.get())) return status;
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
#define HEED_SET(name, initial, ...) problem->name = initial;
    HEED_PROBLEM_FIELDS(HEED_SET)
#undef HEED_SET
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
