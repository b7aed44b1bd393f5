#include "runtime/plan.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <new>

#include "heed/fields.h"
#include "runtime/backend.h"
#include "runtime/cpu.h"
#include "runtime/float_environment.h"
#include "runtime/halide_bridge.h"
#include "runtime/kernel_call.h"
#include "runtime/kernel_choice.h"
#include "runtime/plan_limits.h"
#include "runtime/status.h"
#include "runtime/tasks.h"
#include "runtime/workspace.h"

namespace heed {
namespace {

int64_t most_keys(const heed_problem &p) {
    const Size of_head = p.kv_storage == HEED_KV_VARLEN ? Size{p.total_kv} : Size{p.batch} * p.max_kv_len;
    const Size keys = of_head * p.num_kv_heads;
    return keys.fits ? keys.value : std::numeric_limits<int64_t>::max();
}

bool has_bf16_dots() { return cpu_supports(Isa::avx512bf16) && !has_slow_bf16_dots(); }

// As far as CPUs are concerned.
bool prefills_in_floats(const heed_problem &p) {
    return p.kv_dtype == p.dtype && (p.dtype != HEED_BF16 || !(has_bf16_dots() || cpu_supports(Isa::amx)));
}

bool prefills_in_dots(const heed_problem &p) {
    return p.kv_dtype == p.dtype && p.dtype == HEED_BF16 && has_bf16_dots() && !cpu_supports(Isa::amx);
}

// Whether it pays to read all heads of a key one after the other (Xeon, family 6 model 85, 2 cores, f32, of the time of
// reading heads on their own): keys of 16 KiB 0.83 for 256 of them, 0.48 for 4096; of 4 KiB 1.06 for 512 of them, 0.96
// for 1024, 0.61 for 4096 and more. In pages other kernels look up each key for each head. Floats there always pay: 2
// to 8 heads of 128, 256 to 4096 keys, 4 and 8 rows for each head, Zen 5, 2 threads: 0.66 to 0.83. Elements of 16 bits
// pay in pages alone, and where these leave the caches: 16 sequences of 2048 keys, 32 heads of 128 on 8, 0.62, one of
// 4096 keys 0.65; in the caches 1.03 to 1.2. Floats of several rows for each head do not pay on Intel's CPUs (Emerald
// Rapids, 2 threads, 4096 keys, 32 heads of 128 on 16 and 8: 1.4 and 1.3 cold, 1.7 and 1.1 warm; 16 sequences of 2048
// 1.25; in pages 1.1 and 1.3; one row 0.9).
bool pays_whole_keys(const heed_problem &p, const ProblemViews &views) {
    constexpr int64_t least_bytes = 4 << 10, least_bytes_of_all = 8 << 20;
    if (p.kv_storage == HEED_KV_VARLEN || !heads_are_inside(views)) return false;
    const bool paged = p.kv_storage == HEED_KV_PAGED, floats = p.kv_dtype == HEED_F32;
    const bool several_rows = p.num_heads > p.num_kv_heads || p.max_q_len > 1;
    if (floats && several_rows && is_intel()) return false;
    if (paged && floats) return true;
    if (!paged && !floats) return false;
    const int64_t bytes = p.num_kv_heads * int64_t{std::min(p.head_dim, p.head_dim_v)} * dtype_bytes(p.kv_dtype);
    const bool leave = !(Size{2 * bytes} * p.batch).at_most(least_bytes_of_all / std::max(p.max_kv_len, 1) - 1);
    return leave && (paged || bytes >= least_bytes);
}

bool has_far_keys(const heed_problem &p, const ProblemViews &views) {
    constexpr int64_t page_bytes = 4 << 10;
    return std::min(views.k.stride[1], views.v.stride[1]) >= page_bytes / dtype_bytes(p.kv_dtype);
}

KernelRequest request_of(const heed_problem &p, const ProblemViews &views) {
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
            p.score_mod == nullptr ? "" : p.score_mod,
            most_keys(p),
            int64_t{p.batch} * p.num_kv_heads,
            has_slow_bf16_dots(),
            prefills_in_floats(p),
            prefills_in_dots(p),
            p.max_kv_len,
            p.num_kv_heads,
            pays_whole_keys(p, views),
            has_far_keys(p, views),
            any_q_len ? CopiesOfHeads::no : backend_of(p.device).copies_of_heads(p, views)};
}

void resolve_defaults(heed_problem *p) {
    if (std::isnan(p->scale)) p->scale = 1.0f / std::sqrt(static_cast<float>(p->head_dim));
    if (p->max_threads == 0) p->max_threads = std::min(cpu_count(), max_thread_limit);
}

// For a decode kernel, for one head of keys and values; 1 where tasks are single blocks.
int64_t rows_of_task(const heed_problem &p, const Kernel &kernel) {
    if (kernel.task_blocks == 1) return 1;
    const int64_t rows = int64_t{p.max_q_len} * (p.num_heads / p.num_kv_heads);
    return std::min(rows, int64_t{kernel.row_block} * kernel.task_blocks);
}

// The plan's choice in words.
KernelChoice choice_of(const heed_plan &plan) {
    const char *const forced = plan.forced ? plan.kernel->name : nullptr;
    return choose_kernel(heed_kernel_table, request_of(plan.problem, plan.views), plan.targets, forced);
}

std::string describe_plan(const heed_plan &plan) {
    const heed_problem &p = plan.problem;
    const KernelChoice choice = choice_of(plan);
    std::string text = std::string(plan.kernel->name) + ": " + choice.reason + "\n";
    if (needs_no_kernel(p, plan.views)) text += "empty problem: answered without a kernel\n";
    if (plan.kernel->phase == Phase::decode) {
        text += "splits: " + std::to_string(plan.splits.num_splits) + " of " + std::to_string(plan.splits.split_len) +
                " keys, from max_kv_len " + std::to_string(p.max_kv_len) +
                (p.num_splits > 0 ? " and num_splits " + std::to_string(p.num_splits) : "") + "\n";
    } else if (p.num_splits > 1) {
        text += "splits: 1, prefill kernels do not split the keys (num_splits " + std::to_string(p.num_splits) + ")\n";
    }
    if (p.batch_invariant) text += "batch_invariant: kernel and splits do not depend on batch or other sequences\n";
    text += "workspace: " + std::to_string(plan.workspace.total) + " bytes " + backend_of(p.device).describe(plan);
    return text + "candidates:\n" + choice.candidates;
}

bool verbose() {
    const char *value = std::getenv("HEED_VERBOSE");
    return value != nullptr && std::strcmp(value, "1") == 0;
}

// What best_kernel gives. It reads the whole table, which takes most of a plan's time; steps of decoding differ in
// lengths of keys only, so that each thread remembers its last choice for one.
const Kernel *best_kernel_again(const KernelRequest &request, uint32_t targets) {
    struct Choice {
        KernelRequest request;
        uint32_t targets;
        const Kernel *kernel;
    };
    thread_local Choice last = {};
    const bool same = last.kernel != nullptr && last.targets == targets && decode_alike(last.request, request);
    if (same) return last.kernel;
    const Kernel *const best = best_kernel(heed_kernel_table, request, targets);
    if (best != nullptr && is_preferred_decoder(*best, request)) {
        last = {request, targets, best};
        last.request.score_mod = best->score_mod;  // which lives on
    }
    return best;
}

// The sentence of a refusal comes from choose_kernel.
heed_status find_kernel(heed_plan *plan) {
    const KernelRequest request = request_of(plan->problem, plan->views);
    const char *const forced = std::getenv("HEED_FORCE_KERNEL");
    plan->forced = forced != nullptr && forced[0] != '\0';
    if (!plan->forced) plan->kernel = best_kernel_again(request, plan->targets);
    if (plan->kernel == nullptr) {
        const KernelChoice choice = choose_kernel(heed_kernel_table, request, plan->targets, forced);
        if (choice.kernel == nullptr) return fail(choice.status, "%s", choice.reason.c_str());
        plan->kernel = choice.kernel;
    }
    plan->problem.score_mod = plan->kernel->score_mod;  // which lives on
    return HEED_OK;
}

heed_status create_plan(const heed_problem *problem, std::unique_ptr<heed_plan> *result) {
    if (const heed_status status = check_kernel_library()) return status;
    auto plan = std::make_unique<heed_plan>();
    if (const heed_status status = check_problem(problem, &plan->problem, &plan->views)) return status;
    resolve_defaults(&plan->problem);
    const Backend &backend = backend_of(plan->problem.device);
    if (const heed_status status = backend.check_library()) return status;
    plan->targets = backend.targets(plan->problem);
    if (const heed_status status = find_kernel(plan.get())) return status;
    plan->splits = plan->kernel->phase == Phase::decode
                       ? choose_splits(plan->problem.max_kv_len, plan->kernel->kv_block, plan->problem.num_splits,
                                       rows_of_task(plan->problem, *plan->kernel))
                       : Splits{1, 0};
    plan->task_shape = backend.task_shape(*plan);
    if (const heed_status status = backend.find_kernels_around(plan.get())) return status;
    if (const heed_status status = check_limits(*plan)) return status;
    if (!lay_out_workspace(plan.get())) {
        return fail(HEED_UNSUPPORTED, "the workspace of num_splits %d and max_threads %d is beyond 2^63-1 bytes",
                    plan->problem.num_splits, plan->problem.max_threads);
    }
    install_halide_handlers();
    if (verbose()) std::fprintf(stderr, "heed: %s: %s\n", plan->kernel->name, choice_of(*plan).reason.c_str());
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
    const heed::DefaultFloatEnvironment environment;
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

const char *heed_plan_kernel_name(const heed_plan *plan) { return plan == nullptr ? "" : plan->kernel->name; }

int32_t heed_plan_num_splits(const heed_plan *plan) { return plan == nullptr ? 0 : plan->splits.num_splits; }

const char *heed_plan_explain(const heed_plan *plan) {
    if (plan == nullptr) return "";
    try {
        const std::lock_guard<std::mutex> lock(plan->explain_mutex);
        if (plan->explain.empty()) plan->explain = heed::describe_plan(*plan);
        return plan->explain.c_str();
    } catch (const std::exception &) {
        return "";
    }
}

}  // extern "C"
