#include <xmmintrin.h>

#include <cstring>

#include "runtime/cpu/probs.h"
#include "runtime/key_place.h"
#include "runtime/ops/op_run.h"
#include "runtime/weight_element.h"

namespace heed {
TokenPlace token_place(const HostProbs &call, const int32_t *task, const View &view, int64_t j) {
    const heed_problem &p = call.plan.problem;
    const View &scales = call.plan.views.kv_scale;
    const int64_t g = task[task_kv_head];
    const auto [page, slot] = p.kv_storage == HEED_KV_PAGED
                                  ? place_in_pages(p, call.args.page_table, task[task_sequence], j)
                                  : KeyPlace{task[task_kv_batch], task[task_first_key] + j};
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

// Key j of the task in words, one a step: floats, or pairs of bf16, as they are stored. Where it is stored, when its
// elements are such words and fill the steps; else in `words`.
const float *find_key(const HostProbs &call, const int32_t *task, int64_t j, float *words) {
    const heed_problem &p = call.plan.problem;
    const TokenPlace at = token_place(call, task, call.plan.views.k, j);
    const bool in_words = call.in_pairs() || p.kv_dtype == HEED_F32;
    const char *const stored = bytes_at(call.args.k, p.kv_dtype, at.element);
    const int64_t bytes = int64_t{p.head_dim} * dtype_bytes(p.kv_dtype);
    if (in_words && bytes == int64_t{4} * call.steps()) return reinterpret_cast<const float *>(stored);
    if (in_words) {
        std::memcpy(words, stored, static_cast<size_t>(bytes));
    } else {
        load_token(call, call.args.k, call.args.k_scale, at, p.head_dim, words);
    }
    return words;
}

// Asks for key j of the task: rows of a head are too far apart for the caches to foresee.
void prefetch_key(const HostProbs &call, const int32_t *task, int64_t j) {
    const heed_problem &p = call.plan.problem;
    const char *const key = bytes_at(call.args.k, p.kv_dtype, token_place(call, task, call.plan.views.k, j).element);
    for (int64_t byte = 0; byte < p.head_dim * dtype_bytes(p.kv_dtype); byte += 64) {
        _mm_prefetch(key + byte, _MM_HINT_T0);
    }
}

}  // namespace

void pack_key_panel(const HostProbs &call, const int32_t *task, int64_t panel, float *to) {
    constexpr int64_t lanes = 4;  // keys at once
    const int64_t width = call.products->columns, first = panel * width, steps = call.steps();
    const int64_t count = std::clamp<int64_t>(task[task_kv_len] - first, 0, width);
    float words[lanes][max_head_dim + linear_step_block], zeros[max_head_dim + linear_step_block];
    for (auto &of_key : words) std::fill_n(of_key, steps, 0.f);
    std::fill_n(zeros, steps, 0.f);
    for (int64_t lane = 0; lane < width; lane += lanes) {
        const float *keys[lanes];
        for (int64_t i = 0; i < lanes; i++) {
            const int64_t key = first + lane + i;
            keys[i] = lane + i < count ? find_key(call, task, key, words[i]) : zeros;
            if (key + width < task[task_kv_len]) prefetch_key(call, task, key + width);
        }
        for (int64_t s = 0; s < steps; s += lanes) {
            __m128 a = _mm_loadu_ps(keys[0] + s), b = _mm_loadu_ps(keys[1] + s), c = _mm_loadu_ps(keys[2] + s),
                   d = _mm_loadu_ps(keys[3] + s);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            float *const at = to + s * width + lane;
            _mm_storeu_ps(at, a);
            _mm_storeu_ps(at + width, b);
            _mm_storeu_ps(at + 2 * width, c);
            _mm_storeu_ps(at + 3 * width, d);
        }
    }
}

void pack_panel_of(HostProbs *call, int64_t kv_head, int64_t panel) {
    const heed_problem &p = call->plan.problem;
    // Heads of a group are side by side.
    const int32_t *const task = call->task_of(kv_head * (p.num_heads / p.num_kv_heads));
    if (task == nullptr || panel * call->products->columns >= task[task_kv_len]) return;
    float *const keys = call->panels_of(task[task_sequence], task[task_kv_head]);
    pack_key_panel(*call, task, panel, keys + panel * call->panel_floats());
}

heed_status pack_keys(HostProbs *call, const heed_execution &execution) {
    const heed_problem &p = call->plan.problem;
    const int64_t panels = call->num_panels(), kv_heads = int64_t{p.batch} * p.num_kv_heads;
    const auto pack = [&](int64_t index, int32_t, char(&)[512]) {
        pack_panel_of(call, index / panels, index % panels);
        return 0;
    };
    const double packed = 8.0 * static_cast<double>(kv_heads) * p.max_kv_len * p.head_dim;
    return run_op(probs_name, &execution, op_threads(&execution, packed), kv_heads * panels, pack);
}

}  // namespace heed
