#include "tests/random/shrink.h"

#include <algorithm>

namespace heed_test {
namespace {

using Step = std::function<void(RandomProblem *)>;

// Lists of one entry per sequence follow the batch, lengths the longest ones.
void fit(RandomProblem *p) {
    Attention &a = p->settings;
    const auto cut = [&a](std::vector<int32_t> *values, int32_t most) {
        if (values->empty()) return;
        values->resize(static_cast<size_t>(a.batch));
        for (int32_t &value : *values) value = std::min(value, most);
    };
    cut(&a.q_lens, a.q_len);
    cut(&a.kv_lens, a.kv_len);
    cut(&a.q_offsets, std::numeric_limits<int32_t>::max());
    if (a.position == HEED_EXPLICIT && a.q_offsets.empty()) a.position = HEED_TOP_LEFT;
    const bool same_tokens = a.q_len == a.kv_len && a.q_lens == a.kv_lens && a.head_dim == a.head_dim_v;
    if (!same_tokens) p->options.fused_qkv = false;
    if (p->options.q_storage == HEED_Q_DENSE && p->options.kv_storage == HEED_KV_VARLEN) {
        p->options.kv_storage = HEED_KV_CONTIGUOUS;
    }
}

// Pages as a case file says them: their places are max_kv_len.
void fill_pages(RandomProblem *p) {
    const int32_t size = p->options.page_size;
    p->options.spare_columns = 0;
    if (p->options.kv_storage == HEED_KV_PAGED) p->settings.kv_len = (p->settings.kv_len + size - 1) / size * size;
}

// What may be left out. Each step on its own.
std::vector<Step> omissions() {
    return {
        [](RandomProblem *p) { p->options.with_layout(Layout::packed); },
        [](RandomProblem *p) { p->options.q = Layout::packed; },
        [](RandomProblem *p) { p->options.k = Layout::packed; },
        [](RandomProblem *p) { p->options.v = Layout::packed; },
        [](RandomProblem *p) { p->options.out = Layout::packed; },
        [](RandomProblem *p) { p->options.garbage_strides = p->options.fused_qkv = false; },
        [](RandomProblem *p) { p->options.offset = 0; },
        [](RandomProblem *p) { p->padded_lse = p->padded_scores = p->zero_strides = false; },
        [](RandomProblem *p) { p->poison = p->shared_kv = p->options.share_pages = false; },
        [](RandomProblem *p) { p->options.num_threads = p->max_threads = 1; },
        [](RandomProblem *p) { p->options.num_splits = 0; },
        [](RandomProblem *p) { p->options.batch_invariant = false; },
        [](RandomProblem *p) { p->options.want_lse = true; },
        [](RandomProblem *p) {
            p->options.with_storage(HEED_Q_DENSE, HEED_KV_CONTIGUOUS);
            p->settings.q_lens.clear();
        },
        [](RandomProblem *p) { p->options.kv_storage = HEED_KV_CONTIGUOUS; },
        [](RandomProblem *p) { p->settings.kv_lens.clear(); },
        [](RandomProblem *p) { p->settings.q_lens.clear(); },
        [](RandomProblem *p) { p->mask = false; },
        [](RandomProblem *p) {
            p->mask_axes = {1, 1, 1, 0};
        },
        [](RandomProblem *p) { p->bias = false; },
        [](RandomProblem *p) { p->hiding_bias = 0; },
        [](RandomProblem *p) {
            p->bias_axes = {1, 1, 1, 0};
        },
        [](RandomProblem *p) { p->settings.bias_dtype = HEED_F32; },
        [](RandomProblem *p) { p->sink = false; },
        [](RandomProblem *p) { p->alibi = false; },
        [](RandomProblem *p) { p->temperature = false; },
        [](RandomProblem *p) {
            p->settings.dropout_p = 0;
            p->settings.dropout_seed = p->settings.dropout_offset = 0;
        },
        [](RandomProblem *p) { p->settings.dropout_seed = p->settings.dropout_offset = 0; },
        [](RandomProblem *p) {
            p->settings.position = HEED_TOP_LEFT;
            p->settings.q_offsets.clear();
        },
        [](RandomProblem *p) { p->data = Data::normal; },
    };
}

// Each field that says how logits are made at its default.
std::vector<Step> defaults() {
    std::vector<Step> steps;
#define HEED_RESET(name, initial, ...) steps.push_back([](RandomProblem *p) { p->settings.name = initial; });
    HEED_LOGIT_FIELDS(HEED_RESET)
#undef HEED_RESET
    return steps;
}

// Sizes to cut, down to `least`.
struct Size {
    int32_t *value, least;
};

std::vector<Size> sizes(RandomProblem *p) {
    Attention &a = p->settings;
    return {{&a.batch, 1},
            {&a.q_len, 1},
            {&a.kv_len, 1},
            {&p->options.page_size, 1},
            {&a.head_dim, 1},
            {&a.head_dim_v, 1},
            {&p->options.num_splits, 1},
            {&a.window_left, 0},
            {&a.window_right, 0}};
}

std::vector<Step> cuts() {
    std::vector<Step> steps = {
        [](RandomProblem *p) { p->settings.num_heads = p->settings.num_kv_heads; },
        [](RandomProblem *p) {
            p->settings.num_heads /= p->settings.num_kv_heads;
            p->settings.num_kv_heads = 1;
        },
        [](RandomProblem *p) {  // one head less in each group
            const int32_t group_size = p->settings.num_heads / p->settings.num_kv_heads;
            p->settings.num_heads = p->settings.num_kv_heads * std::max(group_size - 1, 1);
        },
    };
    RandomProblem any;
    for (size_t n = 0; n < sizes(&any).size(); n++) {
        const auto cut = [n](const std::function<int32_t(int32_t)> &smaller) {
            return [n, smaller](RandomProblem *p) {
                const Size size = sizes(p)[n];
                if (*size.value > size.least) *size.value = std::max(smaller(*size.value), size.least);
            };
        };
        steps.push_back(cut([](int32_t) { return 0; }));
        steps.push_back(cut([](int32_t value) { return value / 2; }));
        steps.push_back(cut([](int32_t value) { return value - std::max(value / 8, 1); }));
        steps.push_back(cut([](int32_t value) { return value - 1; }));
    }
    return steps;
}

}  // namespace

RandomProblem shrink(const RandomProblem &problem, const std::function<bool(const RandomProblem &)> &fails) {
    std::vector<Step> steps = omissions();
    for (const auto &more : {defaults(), cuts()}) steps.insert(steps.end(), more.begin(), more.end());
    RandomProblem smallest = problem;
    for (bool smaller = true; smaller;) {
        smaller = false;
        for (const Step &step : steps) {
            RandomProblem candidate = smallest;
            step(&candidate);
            fit(&candidate);
            if (describe(candidate) == describe(smallest) || !fails(candidate)) continue;
            smallest = candidate;
            smaller = true;
        }
    }
    RandomProblem whole_pages = smallest;
    fill_pages(&whole_pages);
    return fails(whole_pages) ? whole_pages : smallest;
}

}  // namespace heed_test
