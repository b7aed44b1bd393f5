#include "tests/random/problem.h"

#include <algorithm>
#include <cmath>

#include "tests/support/describe.h"

namespace heed_test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

void fill_scores(const RandomProblem &problem, Rng *rng, Attention *a) {
    if (problem.mask) add_mask(a, problem.mask_axes, problem.mask_density, rng);
    if (problem.bias) {
        add_bias(a, problem.bias_axes, rng);
        for (float &element : a->bias.data) {
            if (rng->chance(problem.hiding_bias)) element = -infinity;
        }
    }
    for (int32_t h = 0; h < a->num_heads; h++) {
        if (problem.sink) a->sink.push_back(rng->chance(0.2) ? -infinity : 4 * rng->normal());
        if (problem.alibi) a->alibi_slopes.push_back(0.05f * rng->normal());
        if (problem.temperature) a->temperature.push_back(rng->normal());
    }
}

void share_first_sequence(Attention *a) {
    for (int32_t b = 1; b < a->batch; b++) {
        const int64_t k = a->k_index(1, 0, 0), v = a->v_index(1, 0, 0);
        std::copy_n(a->k.begin(), k, a->k.begin() + b * k);
        std::copy_n(a->v.begin(), v, a->v.begin() + b * v);
    }
}

// For each key of a sequence, whether some row of the group of heads sees it.
std::vector<bool> seen_keys(const Attention &a, int32_t b, int32_t g) {
    std::vector<bool> seen(static_cast<size_t>(a.kv_len), false);
    const auto group_size = static_cast<int32_t>(a.group_size());
    for (int32_t h = g * group_size; h < (g + 1) * group_size; h++) {
        for (int32_t i = 0; i < a.q_len_of(b); i++) {
            const std::vector<uint8_t> visible = visible_keys(a, b, h, i);
            for (size_t j = 0; j < seen.size(); j++) seen[j] = seen[j] || visible[j] != 0;
        }
    }
    return seen;
}

void poison_hidden_keys(Attention *a) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (int32_t b = 0; b < a->batch; b++) {
        for (int32_t g = 0; g < a->num_kv_heads; g++) {
            const std::vector<bool> seen = seen_keys(*a, b, g);
            for (int32_t j = 0; j < a->kv_len; j++) {
                if (seen[static_cast<size_t>(j)]) continue;
                std::fill_n(a->k_row(b, j, g), a->head_dim, nan);
                std::fill_n(a->v_row(b, j, g), a->head_dim_v, nan);
            }
        }
    }
}

// Strides of a mask or bias with this shape, 1 where it is broadcast: with gaps after every row, head and sequence.
heed_layout padded_layout(const std::array<int32_t, 4> &shape) {
    heed_layout layout = {{0, 0, 0, 1}};
    int64_t inner = shape[3] + 3;
    for (size_t d = 3; d-- > 0;) {
        layout.stride[d] = inner;
        inner = inner * shape[d] + 1;
    }
    return layout;
}

// The full shape except for the innermost dimension, where a stride of 0 is not allowed.
void broadcast_by_strides(const std::array<int32_t, 4> &shape, int32_t (&api_shape)[4], heed_layout *layout) {
    int64_t inner = shape[3];
    layout->stride[3] = 1;
    for (size_t d = 3; d-- > 0;) {
        api_shape[d] = 0;
        layout->stride[d] = shape[d] == 1 ? 0 : inner;
        inner *= shape[d];
    }
}

}  // namespace

Attention attention_of(const RandomProblem &problem) {
    Attention a = problem.settings;
    Attention values = make_attention(a, problem.data, problem.data_seed, a.dtype, a.int8_kv);
    a.q = std::move(values.q);
    a.k = std::move(values.k);
    a.v = std::move(values.v);
    Rng rng(problem.data_seed + 1);
    fill_scores(problem, &rng, &a);
    if (problem.shared_kv && a.batch > 0) share_first_sequence(&a);
    if (problem.poison) poison_hidden_keys(&a);
    return a;
}

void set_problem(const RandomProblem &problem, heed_problem *p) {
    const Attention &a = problem.settings;
    p->max_threads = problem.max_threads;
    if (problem.shared_kv) {
        p->k_layout = {{0, int64_t{a.num_kv_heads} * a.head_dim, a.head_dim, 1}};
        p->v_layout = {{0, int64_t{a.num_kv_heads} * a.head_dim_v, a.head_dim_v, 1}};
    }
    const bool varlen = p->q_storage == HEED_Q_VARLEN;
    const int64_t tokens = varlen ? p->total_q : p->max_q_len, head_stride = p->num_heads + 1;
    if (problem.padded_lse) p->lse_layout = {{tokens * head_stride + 3, 1, head_stride, 1}};
    const auto resolved = [&](const int32_t(&shape)[4]) {
        const std::array<int32_t, 4> full = {p->batch, p->num_heads, p->max_q_len, p->max_kv_len};
        std::array<int32_t, 4> result = full;
        for (size_t d = 0; d < 4; d++) result[d] = shape[d] == 0 ? full[d] : shape[d];
        return result;
    };
    const struct {
        bool used;
        int32_t (&shape)[4];
        heed_layout *layout;
    } tensors[] = {{p->has_mask, p->mask_shape, &p->mask_layout}, {p->has_bias, p->bias_shape, &p->bias_layout}};
    for (const auto &tensor : tensors) {
        if (!tensor.used) continue;
        if (problem.padded_scores) *tensor.layout = padded_layout(resolved(tensor.shape));
        if (problem.zero_strides) broadcast_by_strides(resolved(tensor.shape), tensor.shape, tensor.layout);
    }
}

std::string describe(const RandomProblem &problem) {
    Attention a = problem.settings;  // without data
    const auto shape = [&a](const std::array<int32_t, 4> &axes) {
        const int32_t full[4] = {a.batch, a.num_heads, a.q_len, a.kv_len};
        std::array<int32_t, 4> result = axes;
        for (size_t d = 0; d < 4; d++) result[d] = axes[d] == 0 ? full[d] : 1;
        return result;
    };
    a.mask.used = problem.mask;
    a.mask.shape = shape(problem.mask_axes);
    a.bias.used = problem.bias;
    a.bias.shape = shape(problem.bias_axes);
    if (problem.sink) a.sink.assign(1, 0);
    if (problem.alibi) a.alibi_slopes.assign(1, 0);
    if (problem.temperature) a.temperature.assign(1, 0);
    std::string text = describe(a, problem.options);
    const char *const data[] = {"normal", "peaked", "sparse", "zero"};
    text += std::string(", ") + data[static_cast<size_t>(problem.data)] + " data";
    if (problem.max_threads != problem.options.num_threads) {
        text += ", a plan for " + std::to_string(problem.max_threads) + " threads";
    }
    if (problem.mask) text += ", mask density " + std::to_string(problem.mask_density);
    if (problem.bias && problem.hiding_bias > 0) text += ", hiding bias " + std::to_string(problem.hiding_bias);
    const struct {
        bool set;
        const char *words;
    } flags[] = {{problem.poison, "NaN where no row looks"},
                 {problem.shared_kv, "one cache for all sequences"},
                 {problem.padded_lse, "padded lse"},
                 {problem.padded_scores, "padded mask and bias"},
                 {problem.zero_strides, "mask and bias broadcast by strides"},
                 {problem.options.share_pages, "shared pages"}};
    for (const auto &[set, words] : flags) {
        if (set) text += std::string(", ") + words;
    }
    return text;
}

}  // namespace heed_test
