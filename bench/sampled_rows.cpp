#include "sampled_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "element_types.h"
#include "tolerance.h"

namespace heed_bench {

namespace {

using heed_reference::Attention;

// A head's tokens from `first` on, of a tensor [batch, heads, len, head_dim].
std::vector<float> tokens(const heed_tensor &tensor, int64_t head, int64_t len, int64_t head_dim, int64_t first,
                          int64_t count) {
    return widened(tensor.dtype, tensor.data, (head * len + first) * head_dim, count * head_dim);
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

// Where (b, h, i, 0) lies in a mask or bias of this case.
int64_t mask_row(const Case &c, int64_t b, int64_t h, int64_t i) {
    const std::array<int32_t, 4> shape = mask_shape(c);
    return ((b % shape[0] * shape[1] + h % shape[1]) * shape[2] + i) * shape[3];
}

// Query row i of a head with what it sees, after those that `a` has.
void add_row(const Case &c, const heed_args &args, int64_t b, int64_t h, int64_t i, Attention *a) {
    const int64_t extra = mask_row(c, b, h, i);
    const auto *mask = static_cast<const uint8_t *>(args.mask.data);
    append(tokens(args.q, b * c.num_heads + h, c.q_len, c.head_dim, i, 1), &a->q);
    for (int64_t j = 0; j < c.kv_len; j++) {
        a->mask.data.push_back(visible(c, i, j) && (mask_elements(c) == 0 || mask[extra + j] != 0));
    }
    if (bias_elements(c) > 0) {
        append(widened(args.bias.dtype, args.bias.data, extra, c.kv_len), &a->bias.data);
    }
}

// One head's rows as a problem of its own, in which a mask says which keys they see.
Attention head_of(const Case &c, const heed_args &args, int64_t b, int64_t h, const std::set<int64_t> &rows) {
    const int64_t kv_head = h / (c.num_heads / c.num_kv_heads), stored = b * c.num_kv_heads + kv_head;
    Attention a;
    a.q_len = static_cast<int32_t>(rows.size());
    a.kv_len = c.kv_len;
    a.head_dim = c.head_dim;
    a.head_dim_v = c.head_dim_v;
    a.dtype = c.dtype;
    a.int8_kv = c.kv_dtype == HEED_I8;
    a.rounds_weights = c.dtype != HEED_F32;
    a.k = tokens(args.k, stored, c.kv_len, c.head_dim, 0, c.kv_len);
    a.v = tokens(args.v, stored, c.kv_len, c.head_dim_v, 0, c.kv_len);
    if (a.int8_kv) {
        dequantise(c, args.k_scale, b, kv_head, a.k);
        dequantise(c, args.v_scale, b, kv_head, a.v);
    }
    a.mask.used = true;
    a.bias.used = bias_elements(c) > 0;
    a.mask.shape = a.bias.shape = {1, 1, a.q_len, a.kv_len};
    for (const int64_t i : rows) {
        add_row(c, args, b, h, i, &a);
    }
    return a;
}

}  // namespace

CheckResult compare_sampled_rows(const Case &c, const heed_args &args) {
    std::mt19937 random(5);
    const auto below = [&](int32_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
    std::set<int64_t> rows = {0, c.q_len - 1};
    for (int n = 0; n < 14; n++) {
        rows.insert(below(c.q_len));
    }
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const heed_reference::Trust given{false, false};  // the data need not prove anything
    CheckResult result{0, 0, 0};
    double square_sum = 0, count = 0;
    for (int pair = 0; pair < 4; pair++) {
        const int64_t b = below(c.batch), h = below(c.num_heads);
        const Attention a = head_of(c, args, b, h, rows);
        const heed_reference::Reference reference = heed_reference::compute_reference_as_held(a, false);
        std::vector<float> out;
        for (const int64_t i : rows) {
            append(tokens(args.out, b * c.num_heads + h, c.q_len, c.head_dim_v, i, 1), &out);
        }
        const heed_reference::Verdict verdict = heed_reference::judge(a, reference, out, {}, given);
        result.bound_ratio =
            std::max(result.bound_ratio, verdict.ok || verdict.out_ratio > 1 ? verdict.out_ratio : infinity);
        for (size_t n = 0; n < out.size(); n++) {
            const double error = std::isnan(out[n]) ? infinity : std::fabs(out[n] - reference.out[n]);
            result.max_error = std::max(result.max_error, error);
            square_sum += error * error;
            count += 1;
        }
    }
    result.rms = std::sqrt(square_sum / count);
    return result;
}

}  // namespace heed_bench
