#include <emmintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "runtime/cpu/linear_in_place.h"
#include "runtime/cpu/probs.h"
#include "runtime/kernel_call.h"
#include "runtime/ops/op_run.h"
#include "runtime/weight_element.h"

namespace heed {
namespace {

constexpr int64_t share = 64;  // steps of a task

bool is_finite(float x) {
    constexpr uint32_t infinity = 0x7f800000;
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    return (bits & infinity) != infinity;
}

// The value of key j of the task.
void load_value(const HostProbs &call, const int32_t *task, int64_t j, float *to) {
    const TokenPlace at = token_place(call, task, call.plan.views.v, j);
    load_token(call, call.args.v, call.args.v_scale, at, call.plan.problem.head_dim_v, to);
}

// Key j of the task is one that has a value which is not finite.
void note_odd_key(HostProbs *call, const int32_t *task, int64_t j) {
    call->odd_keys[call->kv_head_of(task) * call->plan.problem.max_kv_len + j] = 1;
    call->has_odd_keys = true;
}

constexpr int32_t pair_lanes = 8;

// All ones where an element of a key is not finite.
struct OddElements {
    __m128i of_key[2];
};

// pair_lanes elements of two keys as words, 0 for what is not finite. By single elements a layer with weights of 24
// sequences of 100 tokens, 8 heads of 64 and 111, takes 1.04 of the time (Xeon with AMX).
OddElements pair_elements(const uint16_t *const (&keys)[2], uint32_t *words) {
    const __m128i infinity = _mm_set1_epi16(0x7f80);
    __m128i finite[2];
    OddElements odd = {};
    for (int n : {0, 1}) {
        const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i *>(keys[n]));
        odd.of_key[n] = _mm_cmpeq_epi16(_mm_and_si128(value, infinity), infinity);
        finite[n] = _mm_andnot_si128(odd.of_key[n], value);
    }
    auto *const to = reinterpret_cast<__m128i *>(words);
    _mm_storeu_si128(to, _mm_unpacklo_epi16(finite[0], finite[1]));
    _mm_storeu_si128(to + 1, _mm_unpackhi_epi16(finite[0], finite[1]));
    return odd;
}

// Keys j and j + 1, as far as the task has them, as a step.
void load_pairs(HostProbs *call, const int32_t *task, int64_t j, uint32_t *words) {
    const int32_t dim = call->plan.problem.head_dim_v;
    static const uint16_t zeros[max_head_dim] = {};
    const uint16_t *keys[2] = {zeros, zeros};
    for (int part = 0; part < 2 && j + part < task[task_kv_len]; part++) {
        const TokenPlace at = token_place(*call, task, call->plan.views.v, j + part);
        keys[part] = reinterpret_cast<const uint16_t *>(bytes_at(call->args.v, HEED_BF16, at.element));
    }
    __m128i odd[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    const auto note = [&](const OddElements &found) {
        for (int n : {0, 1}) odd[n] = _mm_or_si128(odd[n], found.of_key[n]);
    };
    int32_t d = 0;
    for (; d + pair_lanes <= dim; d += pair_lanes) note(pair_elements({keys[0] + d, keys[1] + d}, words + d));
    if (d < dim) {
        uint16_t last[2][pair_lanes] = {};
        for (int n : {0, 1}) std::copy(keys[n] + d, keys[n] + dim, last[n]);
        note(pair_elements({last[0], last[1]}, words + d));
    }
    for (int n : {0, 1}) {
        if (_mm_movemask_epi8(odd[n]) != 0) note_odd_key(call, task, j + n);
    }
}

// Key j of the task, as far as it has it, as a step.
void load_floats(HostProbs *call, const int32_t *task, int64_t j, float *words) {
    const int32_t dim = call->plan.problem.head_dim_v;
    if (j >= task[task_kv_len]) {
        std::fill_n(words, dim, 0.f);
        return;
    }
    load_value(*call, task, j, words);
    if (std::all_of(words, words + dim, is_finite)) return;
    note_odd_key(call, task, j);
    for (int32_t d = 0; d < dim; d++) words[d] = is_finite(words[d]) ? words[d] : 0;
}

// Steps [first, first + share) of the task, as far as the panels reach.
void pack_share(HostProbs *call, const int32_t *task, int64_t first) {
    const int64_t width = call->value_products->columns, steps = call->value_steps(), head = call->kv_head_of(task);
    float *const panels = call->values.data() + head * call->value_floats();
    union {
        float floats[max_head_dim + linear_step_block * 2];
        uint32_t pairs[max_head_dim + linear_step_block * 2];
    } words;
    std::fill_n(words.pairs, call->value_panels() * width, 0);  // and so what is behind a row's elements stays
    for (int64_t step = first; step < std::min(first + share, steps); step++) {
        if (call->values_in_pairs()) {
            load_pairs(call, task, 2 * step, words.pairs);
        } else {
            load_floats(call, task, step, words.floats);
        }
        for (int64_t panel = 0; panel < call->value_panels(); panel++) {
            std::memcpy(panels + (panel * steps + step) * width, &words.pairs[panel * width],
                        static_cast<size_t>(width) * sizeof(float));
        }
    }
}

char *output_row(const HostProbs &call, const int32_t *task, int32_t row) {
    const int64_t *const stride = call.plan.views.out.stride;
    const int64_t at =
        task[task_q_batch] * stride[0] + (int64_t{task[task_first_q]} + row) * stride[1] + task[task_head] * stride[2];
    return bytes_at(call.args.out, call.plan.problem.dtype, at);
}

// What is not finite, of keys that a row sees.
void add_odd_keys(const HostProbs &call, const WeightedRows &rows, float *sums, int64_t stride) {
    const int32_t dim = call.plan.problem.head_dim_v;
    const uint8_t *const odd = call.odd_keys.data() + call.kv_head_of(rows.task) * call.plan.problem.max_kv_len;
    float words[max_head_dim];
    for (int32_t j = 0; j < rows.end; j++) {
        if (odd[j] == 0) continue;
        load_value(call, rows.task, j, words);
        for (int64_t i = 0; i < rows.count; i++) {
            if (rows.scores[i * rows.score_stride + j] == -std::numeric_limits<float>::infinity()) continue;
            const float weight = load_element(rows.lines, i * rows.line_stride + j, rows.dtype);
            for (int32_t d = 0; d < dim; d++) {
                if (!is_finite(words[d])) sums[i * stride + d] += weight * words[d];
            }
        }
    }
}

}  // namespace

heed_status pack_values(HostProbs *call, const heed_execution &execution) {
    const heed_problem &p = call->plan.problem;
    const int64_t shares = (call->value_steps() + share - 1) / share, kv_heads = int64_t{p.batch} * p.num_kv_heads;
    const int32_t group = p.num_heads / p.num_kv_heads;
    heed_status status = call->values.allocate(probs_name, kv_heads * call->value_floats(), &call->memory);
    if (!status) status = call->odd_keys.allocate(probs_name, kv_heads * p.max_kv_len, &call->memory);
    if (status) return status;
    std::fill_n(call->odd_keys.data(), kv_heads * p.max_kv_len, uint8_t{0});
    const auto pack = [&](int64_t index, int32_t, char(&)[512]) {
        const int32_t *const task = call->task_of(index / shares * group);
        const int64_t first = index % shares * share;
        if (task != nullptr && first < call->steps_of(task[task_kv_len])) pack_share(call, task, first);
        return 0;
    };
    const double packed = 8.0 * static_cast<double>(kv_heads) * p.max_kv_len * p.head_dim_v;
    return run_op(probs_name, &execution, op_threads(&execution, packed), kv_heads * shares, pack);
}

KernelBuffer tiles_in_place(const OpKernel &kernel, const KernelBuffer &rows) {
    constexpr int32_t block = 2 * linear_step_block;
    const bool fits = rows.extent[0] % block == 0 && rows.extent[1] % kernel.rows == 0 && rows.stride[1] % 2 == 0 &&
                      rows.stride[1] < most_tile_stride;
    if (!fits) return {};
    const int32_t words = rows.stride[1] / 2;
    return {rows.data,
            HEED_I32,
            4,
            {linear_step_block, kernel.rows, rows.extent[0] / block, rows.extent[1] / kernel.rows},
            {1, words, linear_step_block, kernel.rows * words}};
}

int multiply_tiles(const OpKernel &kernel, const KernelBuffer &x, const KernelBuffer &panels, float *out, int32_t pitch,
                   char (&message)[512]) {
    AttentionProductsArguments arguments;
    arguments.x = x;
    arguments.weight = panels;
    arguments.out = {out,
                     HEED_F32,
                     4,
                     {kernel.columns, kernel.rows, panels.extent[2], x.extent[3]},
                     {1, pitch, kernel.columns, kernel.rows * pitch}};
    return call_op_kernel(kernel, arguments, message);
}

namespace {

// Products of the rows' probabilities and the values, into sums.
int multiply(const HostProbs &call, const WeightedRows &rows, const KernelBuffer &sums, char (&message)[512]) {
    constexpr int32_t block = linear_step_block;
    const int32_t width = call.value_products->columns, panels = narrow(call.value_panels());
    const heed_dtype step = call.values_in_pairs() ? HEED_I32 : HEED_F32;
    const float *const values = call.values.data() + call.kv_head_of(rows.task) * call.value_floats();
    const float *const zeros = call.no_bias.data();
    const KernelBuffer x = {
        const_cast<void *>(rows.lines), rows.dtype, 2, {rows.width, rows.count}, {1, narrow(rows.line_stride)}};
    KernelBuffer weight = packed_buffer(values, step, {width, narrow(call.value_steps()), panels});
    const KernelBuffer bias = packed_buffer(zeros, HEED_F32, {panels * width});
    if (call.sums_in_tiles()) {
        const KernelBuffer tiles = tiles_in_place(*call.whole_tiles, x);
        if (tiles.data != nullptr) {
            weight.extent[1] = tiles.extent[2] * block;
            return multiply_tiles(*call.whole_tiles, tiles, weight, rows.sums, call.sums_pitch(), message);
        }
    }
    const InPlaceKernels in_place = serving(call.in_place, rows.line_stride * dtype_bytes(rows.dtype), sums.dtype);
    if (in_place.are_there()) {
        LinearInPlaceArguments product;
        product.x = x;
        product.weight = weight;
        product.bias = bias;
        product.clip = no_clip;
        product.out = sums;
        return multiply_in_place(in_place, product, message);
    }
    const int32_t tile = call.value_products->rows, steps = narrow(call.steps_of(rows.width));
    const int32_t tiles = (rows.count + tile - 1) / tile;
    LinearRowsArguments packing;
    packing.x = x;
    packing.tiles = packed_buffer(rows.tiles, step, {block, tile, steps / block, tiles});
    if (const int code = call_op_kernel(*call.packs_weights, packing, message)) return code;
    weight.extent[1] = steps;
    if (call.sums_in_tiles())
        return multiply_tiles(*call.whole_tiles, packing.tiles, weight, rows.sums, call.sums_pitch(), message);
    LinearArguments product;
    product.x = packing.tiles;
    product.weight = weight;
    product.before = {const_cast<float *>(zeros), HEED_F32, 4, {width, tile, panels, tiles}, {1, 0, 0, 0}};
    product.bias = bias;
    product.clip = no_clip;
    product.out = sums;
    return call_op_kernel(*call.value_products, product, message);
}

}  // namespace

int multiply_values(const HostProbs &call, const WeightedRows &rows, char (&message)[512]) {
    const heed_problem &p = call.plan.problem;
    char *const out = output_row(call, rows.task, rows.first);
    const int64_t out_stride = call.plan.views.out.stride[1];
    float *const sums = call.sums_are_out() ? reinterpret_cast<float *>(out) : rows.sums;
    const int64_t stride = call.sums_are_out() ? out_stride : call.sums_in_tiles() ? call.sums_pitch() : p.head_dim_v;
    const KernelBuffer into = {sums, HEED_F32, 2, {p.head_dim_v, rows.count}, {1, narrow(stride)}};
    if (const int code = multiply(call, rows, into, message)) return code;
    if (call.has_odd_keys) add_odd_keys(call, rows, sums, stride);
    for (int64_t i = 0; i < rows.count && !call.sums_are_out(); i++) {
        store_elements(sums + i * stride, p.dtype, p.head_dim_v, out + i * out_stride * dtype_bytes(p.dtype));
    }
    return 0;
}

void clear_output(const HostProbs &call, const int32_t *task, int32_t first, int32_t count) {
    const heed_problem &p = call.plan.problem;
    for (int32_t i = first; i < first + count; i++) {
        std::memset(output_row(call, task, i), 0, static_cast<size_t>(p.head_dim_v * dtype_bytes(p.dtype)));
    }
}

}  // namespace heed
