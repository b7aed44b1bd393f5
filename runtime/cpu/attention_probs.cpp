// heed_attention_probs on the CPU: a kernel call per query row.
#include <algorithm>
#include <limits>

#include "cpu/cpu_backend.h"
#include "kernel_call.h"
#include "ops/heap_array.h"
#include "ops/op_rows.h"
#include "ops/op_run.h"
#include "ops/probs_call.h"
#include "tasks.h"

namespace heed {
namespace {

struct HostProbs : ProbsCall {
    const OpKernel *row = nullptr;
    HeapArray<int32_t> tasks = {};         // one per head of each sequence that has queries
    HeapArray<int64_t> task_of_head = {};  // [batch][num_heads]: index into tasks, -1 without queries
    HeapArray<float> scratch = {};         // two lines of max_kv_len per item

    int64_t num_heads() const { return int64_t{plan.problem.batch} * plan.problem.num_heads; }
};

// What the rows of each head see.
heed_status resolve(HostProbs *call) {
    const heed_problem &p = call->plan.problem;
    Kernel whole_heads = {};
    whole_heads.phase = Phase::prefill;
    whole_heads.row_block = 1 << 30;
    Workload work;
    const int64_t most = max_tasks(p, whole_heads);
    if (most < 0)
        return fail(HEED_UNSUPPORTED, "max_q_len is %d; heed_attention_probs serves less than 2^30", p.max_q_len);
    heed_status status = call->tasks.allocate("heed_attention_probs", most * num_task_fields);
    if (!status) status = call->task_of_head.allocate("heed_attention_probs", call->num_heads());
    if (!status) status = resolve_tasks(p, call->plan.views, whole_heads, call->args, call->tasks.data(), &work);
    if (status) return status;
    for (int64_t head = 0; head < call->num_heads(); head++) call->task_of_head[head] = -1;
    for (int64_t n = 0; n < work.num_tasks; n++) {
        const int32_t *task = &call->tasks[n * num_task_fields];
        call->task_of_head[int64_t{task[task_sequence]} * p.num_heads + task[task_head]] = n * num_task_fields;
    }
    return HEED_OK;
}

char *bytes_at(const heed_tensor &tensor, heed_dtype dtype, int64_t index) {
    return static_cast<char *>(tensor.data) + index * dtype_bytes(dtype);
}

// One line of a mask or bias, from its row on; one element with stride 0 where there is none.
KernelBuffer line_of(bool used, const heed_tensor &tensor, heed_dtype dtype, const View &view, const void *dummy,
                     const int64_t (&at)[3], int32_t width) {
    if (!used) return {const_cast<void *>(dummy), dtype, 1, {width}, {0}};
    const int64_t index = at[0] * view.stride[0] + at[1] * view.stride[1] + at[2] * view.stride[2];
    return {bytes_at(tensor, dtype, index), dtype, 1, {width}, {narrow(view.stride[3])}};
}

void set_keys(const HostProbs &call, const int32_t *task, AttentionProbsArguments *row) {
    static const float one = 1;
    static const int32_t no_page = 0;
    const heed_problem &p = call.plan.problem;
    const View k = kernel_views(p, call.plan.views).k, &scales = call.plan.views.kv_scale;
    const int64_t g = task[task_kv_head];
    const int32_t slots = narrow(k.extent[1]), pages = narrow(k.extent[0]);
    row->k = {bytes_at(call.args.k, p.kv_dtype, g * k.stride[2]),
              p.kv_dtype,
              3,
              {p.head_dim, slots, pages},
              {1, narrow(k.stride[1]), narrow(k.stride[0])}};
    row->k_scale = {const_cast<float *>(&one), HEED_F32, 2, {slots, pages}, {0, 0}};
    if (p.kv_dtype == HEED_I8) {
        row->k_scale = {bytes_at(call.args.k_scale, HEED_F32, g * scales.stride[3]),
                        HEED_F32,
                        2,
                        {slots, pages},
                        {narrow(scales.stride[2]), narrow(scales.stride[1])}};
    }
    const bool paged = p.kv_storage == HEED_KV_PAGED;
    const int32_t *table = paged ? call.args.page_table + int64_t{task[task_sequence]} * p.max_pages_per_seq : &no_page;
    row->page_table = {const_cast<int32_t *>(table), HEED_I32, 1, {paged ? p.max_pages_per_seq : 1}, {1}};
    row->page_size = paged ? p.page_size : 0;
    row->kv_len = task[task_kv_len];
    row->kv_batch = task[task_kv_batch];
    row->first_key = task[task_first_key];
}

void set_scores(const HostProbs &call, const int32_t *task, int32_t i, AttentionProbsArguments *row) {
    static const float zero = 0;
    const heed_problem &p = call.plan.problem;
    const ProblemViews &views = call.plan.views;
    const int64_t h = task[task_head], at[3] = {task[task_sequence], h, i};
    const bool narrow_bias = bias_form(p) == bias_of_dtype;
    const int32_t width = p.max_kv_len;
    row->mask = line_of(p.has_mask, call.args.mask, HEED_U8, views.mask, &zero, at, width);
    row->bias = line_of(p.has_bias && !narrow_bias, call.args.bias, HEED_F32, views.bias, &zero, at, width);
    row->bias_16 = line_of(narrow_bias, call.args.bias, HEED_F16, views.bias, &zero, at, width);
    row->begin = narrow(std::clamp<int64_t>(int64_t{i} + task[task_visible_begin], 0, width));
    row->end = narrow(std::clamp<int64_t>(int64_t{i} + task[task_visible_end], 0, task[task_kv_len]));
    row->row = i;
    row->position_offset = task[task_position_offset];
    row->mode = call.mode;
    set_values(LogitValues(p), row);
    row->slope = p.has_alibi ? call.args.alibi_slopes[h] : 0;
    row->sink = p.has_sink ? call.args.sink[h] : -std::numeric_limits<float>::infinity();
}

AttentionProbsArguments row_inputs(const HostProbs &call, const int32_t *task, int32_t i) {
    const heed_problem &p = call.plan.problem;
    const View &q = call.plan.views.q;
    const int64_t index = task[task_q_batch] * q.stride[0] + (int64_t{task[task_first_q]} + i) * q.stride[1] +
                          task[task_head] * q.stride[2];
    AttentionProbsArguments row;
    row.q = {bytes_at(call.args.q, p.dtype, index), p.dtype, 1, {p.head_dim}, {1}};
    set_keys(call, task, &row);
    set_scores(call, task, i, &row);
    return row;
}

// A row of the result without a kernel: there are no keys, or varlen queries have no such row.
void fill_row(const HostProbs &call, char *row, bool exists) {
    const bool hidden = exists && call.mode == HEED_PROBS_MASKED;
    for (int64_t j = 0; j < call.plan.problem.max_kv_len; j++) {
        if (call.out.dtype == HEED_F32) {
            reinterpret_cast<float *>(row)[j] = hidden ? -std::numeric_limits<float>::infinity() : 0;
        } else {
            const uint16_t minus_infinity = call.out.dtype == HEED_F16 ? 0xfc00 : 0xff80;
            reinterpret_cast<uint16_t *>(row)[j] = hidden ? minus_infinity : 0;
        }
    }
}

// Row `index` of the [batch, num_heads, max_q_len] result.
int run_row(const HostProbs &call, int64_t index, float *scratch, char (&message)[512]) {
    const heed_problem &p = call.plan.problem;
    const int32_t i = narrow(index % p.max_q_len), width = p.max_kv_len;
    const int64_t head = index / p.max_q_len, *stride = call.probs.stride;
    const int32_t *task = call.task_of_head[head] < 0 ? nullptr : &call.tasks[call.task_of_head[head]];
    const int64_t at = head / p.num_heads * stride[0] + head % p.num_heads * stride[1] + i * stride[2];
    char *const result = bytes_at(call.out, call.out.dtype, at);
    const bool exists = task != nullptr && i < task[task_q_len];
    if (!exists || task[task_kv_len] == 0) {
        fill_row(call, result, exists);
        return 0;
    }
    AttentionProbsArguments arguments = row_inputs(call, task, i);
    float stats[2];
    const bool wide = call.out.dtype == HEED_F32;
    void *const spare = scratch + width;
    arguments.scores = {scratch, HEED_F32, 1, {width}, {1}};
    arguments.row_max = {stats, HEED_F32, 0, {}, {}};
    arguments.row_sum = {stats + 1, HEED_F32, 0, {}, {}};
    arguments.probs = {wide ? result : spare, HEED_F32, 1, {width}, {1}};
    arguments.probs_16 = {wide ? spare : result, p.dtype, 1, {width}, {1}};  // f32 rows do not look at it
    return call_op_kernel(*call.row, arguments, message);
}

heed_status run_probs(HostProbs *call) {
    const heed_problem &p = call->plan.problem;
    const double bytes = static_cast<double>(call->num_heads()) * p.max_q_len * p.max_kv_len * p.head_dim;
    heed_execution execution = {};
    execution.num_threads = call->args.num_threads == 0 ? p.max_threads : call->args.num_threads;
    execution.pool = call->args.pool;
    const int32_t threads = op_threads(&execution, bytes);
    const int64_t floats = 2 * int64_t{p.max_kv_len};
    if (const heed_status status = call->scratch.allocate("heed_attention_probs", threads * floats)) return status;
    const auto block = [&](int64_t index, int32_t item, char(&message)[512]) {
        return run_row(*call, index, call->scratch.data() + item * floats, message);
    };
    return run_op("heed_attention_probs", &execution, threads, call->num_heads() * p.max_q_len, block);
}

}  // namespace

heed_status CpuBackend::add_probs_workspace(const heed_plan &, const heed_args &, MemoryRanges *) const {
    return HEED_OK;
}

heed_status CpuBackend::attention_probs(const ProbsCall &checked) const {
    HostProbs call = {checked};
    const heed_problem &p = call.plan.problem;
    heed_status status = resolve(&call);
    if (!status) status = find_op_row(Op::attention_probs, p.dtype, p.kv_dtype, &call.row);
    return status ? status : run_probs(&call);
}

}  // namespace heed
