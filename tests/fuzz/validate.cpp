// Bytes -> a heed_problem as any caller may have filled it, and its metadata. Whatever they hold: the problem is
// refused with a sentence or has a plan; the metadata is refused, or every task that it makes stays inside the tensors.
#include <algorithm>
#include <limits>
#include <memory>
#include <vector>

#include "heed/heed.h"
#include "runtime/plan.h"
#include "runtime/tasks.h"
#include "tests/fuzz/fuzz.h"

namespace heed_test {
namespace {

using PlanPtr = std::unique_ptr<heed_plan, void (*)(heed_plan *)>;

heed_status create(const heed_problem &problem, PlanPtr *plan) {
    heed_plan *created = nullptr;
    const heed_status status = heed_plan_create(&problem, &created);
    require((status == HEED_OK) == (created != nullptr), "a plan exactly on success");
    plan->reset(created);
    return status;
}

void check_refusal(heed_status status) {
    require(status == HEED_INVALID_ARGUMENT || status == HEED_UNSUPPORTED || status == HEED_NO_DEVICE,
            "a problem is refused as invalid, unsupported or without a device");
    require(heed_last_error()[0] != '\0', "a refusal has its sentence");
}

void check_plan(const heed_problem &problem, const heed_plan *plan) {
    PlanPtr again(nullptr, heed_plan_destroy);
    require(create(problem, &again) == HEED_OK, "a second plan of the problem");
    const size_t bytes = heed_plan_workspace_bytes(plan);
    require(bytes == heed_plan_workspace_bytes(again.get()) && bytes <= std::numeric_limits<int64_t>::max() &&
                bytes % 128 == 0,
            "one size of the workspace, in units of 128 bytes");
    require(std::string(heed_plan_kernel_name(plan)) == heed_plan_kernel_name(again.get()), "one kernel");
    require(heed_plan_num_splits(plan) >= 1 && heed_plan_explain(plan)[0] != '\0', "splits and an explanation");
}

// Execute on no memory at all: refused, unless there is nothing to do.
void check_empty_call(const heed_problem &problem, const heed_plan *plan) {
    heed_args args;
    heed_args_init(&args);
    const heed_status status = heed_execute(plan, &args);
    const bool empty = problem.batch == 0 || problem.max_q_len == 0;
    require(!empty || status == HEED_OK, "an empty problem succeeds without memory");
    require(empty || status != HEED_OK || plan->views.out.span == 0, "NULL for the output is refused");
}

// The metadata of one call, in allocations of its exact size.
struct Metadata {
    std::vector<int32_t> cu_seqlens_q, cu_seqlens_kv, kv_lens, q_offsets, page_table;

    Metadata(const heed_problem &p, ByteReader *bytes) {
        const auto read = [&](bool used, int64_t count) {
            std::vector<int32_t> values(used ? static_cast<size_t>(count) : 0);
            for (int32_t &value : values) value = bytes->get<int32_t>();
            return values;
        };
        cu_seqlens_q = read(p.q_storage == HEED_Q_VARLEN, p.batch + 1);
        cu_seqlens_kv = read(p.kv_storage == HEED_KV_VARLEN, p.batch + 1);
        kv_lens = read(p.has_kv_lens, p.batch);
        q_offsets = read(p.position == HEED_EXPLICIT, p.batch);
        page_table = read(p.kv_storage == HEED_KV_PAGED, int64_t{p.batch} * p.max_pages_per_seq);
    }

    heed_args args() const {
        heed_args args;
        heed_args_init(&args);
        args.cu_seqlens_q = cu_seqlens_q.data();
        args.cu_seqlens_kv = cu_seqlens_kv.data();
        args.kv_lens = kv_lens.data();
        args.q_offsets = q_offsets.data();
        args.page_table = page_table.data();
        return args;
    }
};

void check_task(const heed_problem &p, const Metadata &metadata, const int32_t *task) {
    const auto inside = [](int64_t first, int64_t count, int64_t total) {
        return first >= 0 && count >= 0 && first + count <= total;
    };
    const bool varlen_q = p.q_storage == HEED_Q_VARLEN, varlen_kv = p.kv_storage == HEED_KV_VARLEN;
    const int32_t sequence = task[heed::task_sequence], kv_len = task[heed::task_kv_len];
    require(inside(sequence, 1, p.batch), "a task's sequence is one of the batch");
    require(inside(task[heed::task_head], 1, p.num_heads), "a task's head is one of the heads");
    require(task[heed::task_kv_head] == task[heed::task_head] / (p.num_heads / p.num_kv_heads), "and of its group");
    require(
        inside(task[heed::task_kv_head], task[heed::task_num_blocks] / task[heed::task_head_blocks], p.num_kv_heads),
        "a task's heads are heads");
    require(inside(task[heed::task_first_q], task[heed::task_q_len], varlen_q ? p.total_q : p.max_q_len),
            "a task's queries are in q");
    require(inside(0, task[heed::task_q_len], p.max_q_len), "and are at most max_q_len");
    require(inside(task[heed::task_first_key], kv_len, varlen_kv ? p.total_kv : p.max_kv_len),
            "a task's keys are in k and v");
    require(inside(0, kv_len, p.max_kv_len), "and are at most max_kv_len");
    require(task[heed::task_visible_end] <= kv_len, "nothing after the keys is visible");
    require(task[heed::task_q_batch] == (varlen_q ? 0 : sequence), "a task's batch index");
    if (p.kv_storage != HEED_KV_PAGED) return;
    const int64_t pages = (int64_t{kv_len} + p.page_size - 1) / p.page_size;
    require(pages <= p.max_pages_per_seq, "a task's pages are in its row of the table");
    for (int64_t i = 0; i < pages; i++) {
        const int32_t page = metadata.page_table[static_cast<size_t>(int64_t{sequence} * p.max_pages_per_seq + i)];
        require(inside(page, 1, p.num_pages), "a page that is read is in the pool");
    }
}

// Where the tables are small enough to hold.
void check_metadata(const heed_plan &plan, ByteReader *bytes) {
    const heed_problem &p = plan.problem;
    constexpr int64_t most = 4096;
    if (p.batch > most || int64_t{p.batch} * p.max_pages_per_seq > most || p.device != HEED_CPU) return;
    const int64_t max_tasks = heed::max_tasks(p, *plan.kernel, plan.task_shape);
    if (max_tasks > most) return;
    const bool no_kernel = heed::needs_no_kernel(p, plan.views);
    if (no_kernel && max_tasks < 0) return;
    require(max_tasks >= 0, "a plan with a kernel has a table of tasks");
    const Metadata metadata(p, bytes);
    std::vector<int32_t> tasks(static_cast<size_t>(no_kernel ? 0 : max_tasks * heed::num_task_fields));
    heed::Workload work;
    const heed_status status = heed::resolve_tasks(p, plan.views, *plan.kernel, metadata.args(),
                                                   {no_kernel ? nullptr : tasks.data()}, &work, plan.task_shape);
    require(status == HEED_OK || status == HEED_INVALID_ARGUMENT, "metadata is right or invalid");
    if (status != HEED_OK) return;
    require(work.num_tasks >= 0 && work.num_tasks <= max_tasks, "no more tasks than the workspace holds");
    for (int32_t n = 0; n < work.num_tasks; n++) check_task(p, metadata, &tasks[size_t(n) * heed::num_task_fields]);
}

}  // namespace
}  // namespace heed_test

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    using namespace heed_test;
    ByteReader bytes(data, size);
    auto problem = bytes.get<heed_problem>();
    const char *const names[] = {nullptr, "",
                                 "unknown"};  // of a score function: a pointer is the caller's to get right
    problem.score_mod = names[reinterpret_cast<uintptr_t>(problem.score_mod) % 3];
    PlanPtr plan(nullptr, heed_plan_destroy);
    const heed_status status = create(problem, &plan);
    if (status != HEED_OK) {
        check_refusal(status);
        return 0;
    }
    check_plan(problem, plan.get());
    check_empty_call(problem, plan.get());
    check_metadata(*plan, &bytes);
    return 0;
}
