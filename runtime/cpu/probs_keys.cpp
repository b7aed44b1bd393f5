#include <cstring>

#include "runtime/cpu/probs.h"
#include "runtime/ops/op_run.h"
#include "runtime/weight_element.h"

namespace heed {
TokenPlace token_place(const HostProbs &call, const int32_t *task, const View &view, int64_t j) {
    const heed_problem &p = call.plan.problem;
    const View &scales = call.plan.views.kv_scale;
    const int64_t g = task[task_kv_head];
    int64_t page = task[task_kv_batch], slot = task[task_first_key] + j;
    if (p.kv_storage == HEED_KV_PAGED) {
        const int32_t *const table = call.args.page_table + int64_t{task[task_sequence]} * p.max_pages_per_seq;
        page = std::clamp(table[j / p.page_size], 0, std::max(p.num_pages, 1) - 1);
        slot = j % p.page_size;
    }
    return {page * view.stride[0] + slot * view.stride[1] + g * view.stride[2],
            page * scales.stride[1] + slot * scales.stride[2] + g * scales.stride[3]};
}

void load_token(const HostProbs &call, const heed_tensor &tensor, const heed_tensor &scales, const TokenPlace &at,
                int32_t dim, float *to) {
    const heed_dtype dtype = call.plan.problem.kv_dtype;
    if (dtype != HEED_I8) {
        load_elements(bytes_at(tensor, dtype, at.element), dtype, dim, to);
        return;
    }
    const auto *const codes = static_cast<const int8_t *>(tensor.data) + at.element;
    const float scale = static_cast<const float *>(scales.data)[at.scale];
    for (int32_t d = 0; d < dim; d++) to[d] = scale * static_cast<float>(codes[d]);
}

namespace {

// Key j of the task in words, one a step: floats, or pairs of bf16, as they are stored.
void load_key(const HostProbs &call, const int32_t *task, int64_t j, float *words) {
    const heed_problem &p = call.plan.problem;
    const TokenPlace at = token_place(call, task, call.plan.views.k, j);
    if (call.in_pairs()) {
        std::memcpy(words, bytes_at(call.args.k, HEED_BF16, at.element), static_cast<size_t>(p.head_dim) * 2);
    } else {
        load_token(call, call.args.k, call.args.k_scale, at, p.head_dim, words);
    }
}

}  // namespace

void pack_key_panel(const HostProbs &call, const int32_t *task, int64_t panel, float *to) {
    const int64_t width = call.products->columns, first = panel * width, steps = call.steps();
    const int64_t count = std::clamp<int64_t>(task[task_kv_len] - first, 0, width);
    float words[max_head_dim + linear_step_block] = {};
    for (int64_t lane = 0; lane < count; lane++) {
        load_key(call, task, first + lane, words);
        for (int64_t s = 0; s < steps; s++) to[s * width + lane] = words[s];
    }
    for (int64_t lane = count; lane < width; lane++) {
        for (int64_t s = 0; s < steps; s++) to[s * width + lane] = 0;
    }
}

heed_status pack_keys(HostProbs *call, const heed_execution &execution) {
    const heed_problem &p = call->plan.problem;
    const int64_t panels = call->num_panels(), kv_heads = int64_t{p.batch} * p.num_kv_heads;
    const int32_t group = p.num_heads / p.num_kv_heads;
    if (const heed_status status = call->keys.allocate(probs_name, kv_heads * panels * call->panel_floats()))
        return status;
    const auto pack = [&](int64_t index, int32_t, char(&)[512]) {
        const int64_t kv_head = index / panels;
        const int32_t *const task = call->task_of(kv_head * group);  // group heads of a sequence are side by side
        const int64_t panel = index % panels;
        if (task != nullptr && panel * call->products->columns < task[task_kv_len]) {
            float *const keys = call->panels_of(task[task_sequence], task[task_kv_head]);
            pack_key_panel(*call, task, panel, keys + panel * call->panel_floats());
        }
        return 0;
    };
    const double packed = 8.0 * static_cast<double>(kv_heads) * p.max_kv_len * p.head_dim;
    return run_op(probs_name, &execution, op_threads(&execution, packed), kv_heads * panels, pack);
}

}  // namespace heed
