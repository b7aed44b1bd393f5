#include "bench/sampled_queries.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "bench/element_types.h"
#include "runtime/reference/tolerance.h"

namespace heed_bench {

namespace {

using heed_reference::Attention;

// Positions [first, first + count) of a head.
std::vector<float> tokens(const heed_tensor &tensor, const TensorLayout &layout, int64_t b, int64_t head,
                          int64_t head_dim, int64_t first, int64_t count) {
    std::vector<float> values;
    for (int64_t n = first; n < first + count; n++) {
        const std::vector<float> row = widened(tensor.dtype, tensor.data, layout.offset(b, n, head), head_dim);
        values.insert(values.end(), row.begin(), row.end());
    }
    return values;
}

// scales: [batch, kv_len, num_kv_heads]
void dequantise(const Case &c, const heed_tensor &scales, int64_t b, int64_t kv_head, std::vector<float> &x) {
    const float *scale = static_cast<const float *>(scales.data);
    const size_t head_dim = x.size() / static_cast<size_t>(c.kv_len);
    for (size_t n = 0; n < x.size(); n++) {
        x[n] *= scale[(b * c.kv_len + static_cast<int64_t>(n / head_dim)) * c.num_kv_heads + kv_head];
    }
}

void append(const std::vector<float> &more, std::vector<float> *values) {
    values->insert(values->end(), more.begin(), more.end());
}

// Where (b, h, i, 0) is in a mask or bias of this case.
int64_t mask_row(const Case &c, int64_t b, int64_t h, int64_t i) {
    const std::array<int32_t, 4> shape = mask_shape(c);
    return ((b % shape[0] * shape[1] + h % shape[1]) * shape[2] + i) * shape[3];
}

struct Head {
    int64_t b, h;
};

// A problem of one head without queries; masks say which keys they see.
Attention keys_of(const Case &c, const heed_args &args, const Head &head) {
    const int64_t kv_head = head.h / (c.num_heads / c.num_kv_heads);
    Attention a;
    copy_logit_fields(c, &a);
    a.causal = false;
    a.window_left = a.window_right = -1;
#define HEED_TAKE(name, used, ...)                                                                                     \
    if (c.used) a.name = {args.name[head.h]};
    HEED_HEAD_ARRAYS(HEED_TAKE)
#undef HEED_TAKE
    a.dropout_p = c.dropout_p;
    a.kv_len = c.kv_len;
    a.head_dim = c.head_dim;
    a.head_dim_v = c.head_dim_v;
    a.dtype = c.dtype;
    a.int8_kv = c.kv_dtype == HEED_I8;
    a.rounds_weights = c.dtype != HEED_F32;
    a.k = tokens(args.k, k_layout(c), head.b, kv_head, c.head_dim, 0, c.kv_len);
    a.v = tokens(args.v, v_layout(c), head.b, kv_head, c.head_dim_v, 0, c.kv_len);
    if (a.int8_kv) {
        dequantise(c, args.k_scale, head.b, kv_head, a.k);
        dequantise(c, args.v_scale, head.b, kv_head, a.v);
    }
    a.mask.used = true;
    a.bias.used = bias_elements(c) > 0;
    a.position = HEED_EXPLICIT;
    return a;
}

// Queries [first, first + count) with what they see, in the place of others.
void set_queries(const Case &c, const heed_args &args, const Head &head, int32_t first, int32_t count, Attention *a) {
    const auto *mask = static_cast<const uint8_t *>(args.mask.data);
    a->q_len = count;
    a->q_offsets = {first + c.kv_len - c.q_len};
    a->q = tokens(args.q, q_layout(c), head.b, head.h, c.head_dim, first, count);
    a->mask.shape = a->bias.shape = {1, 1, a->q_len, a->kv_len};
    a->mask.data.clear();
    a->bias.data.clear();
    for (int64_t i = first; i < first + count; i++) {
        const int64_t extra = mask_row(c, head.b, head.h, i);
        for (int64_t j = 0; j < c.kv_len; j++) {
            a->mask.data.push_back(visible(c, i, j) && (mask_elements(c) == 0 || mask[extra + j] != 0));
        }
        if (a->bias.used) append(widened(args.bias.dtype, args.bias.data, extra, c.kv_len), &a->bias.data);
    }
}

}  // namespace

CheckResult compare_sampled_queries(const Case &c, const heed_args &args) {
    std::mt19937 random(5);
    const auto below = [&](int32_t n) { return static_cast<int32_t>(random() % static_cast<uint32_t>(n)); };
    // Dropout counts elements from the first head's first query on.
    const bool whole_head = c.dropout_p > 0;
    std::set<int32_t> queries = {0};
    for (int n = 0; n < 14 && !whole_head; n++) queries.insert(below(c.q_len));
    if (!whole_head) queries.insert(c.q_len - 1);
    const int32_t count = whole_head ? c.q_len : 1;
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const heed_reference::Trust given{false, false};  // the data need not prove anything
    CheckResult result{0, 0, 0};
    double square_sum = 0, num_values = 0;
    for (int pair = 0; pair < (whole_head ? 1 : 4); pair++) {
        const Head head = whole_head ? Head{0, 0} : Head{below(c.batch), below(c.num_heads)};
        Attention a = keys_of(c, args, head);
        for (const int32_t i : queries) {
            set_queries(c, args, head, i, count, &a);
            const heed_reference::Reference reference = heed_reference::compute_reference_as_held(a, false);
            const std::vector<float> out = tokens(args.out, out_layout(c), head.b, head.h, c.head_dim_v, i, count);
            const heed_reference::Verdict verdict = heed_reference::verdict_of(a, reference, out, {}, given);
            result.bound_ratio =
                std::max(result.bound_ratio, verdict.ok || verdict.out_ratio > 1 ? verdict.out_ratio : infinity);
            for (size_t n = 0; n < out.size(); n++) {
                const double error = std::isnan(out[n]) ? infinity : std::fabs(out[n] - reference.out[n]);
                result.max_error = std::max(result.max_error, error);
                square_sum += error * error;
                num_values += 1;
            }
        }
    }
    result.rms = std::sqrt(square_sum / num_values);
    return result;
}

}  // namespace heed_bench
