#include "sampled_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

namespace heed_bench {

namespace {

struct Reference {
    std::vector<double> out;
    double largest_logit = 0, largest_value = 0;  // of visible keys
};

struct Tensors {
    const float *q, *k, *v;
    const uint8_t *mask;
    const float *bias;
};

// Where (b, h, i, 0) lies in a mask or bias of this case.
int64_t mask_row(const Case &c, int64_t b, int64_t h, int64_t i) {
    const std::array<int32_t, 4> shape = mask_shape(c);
    return ((b % shape[0] * shape[1] + h % shape[1]) * shape[2] + i) * shape[3];
}

// Logits of one row, -inf where a key is hidden.
std::vector<double> logits_of(const Case &c, const Tensors &t, int64_t b, int64_t h, int64_t i) {
    const int64_t kv_head = b * c.num_kv_heads + h / (c.num_heads / c.num_kv_heads);
    const float *q = t.q + ((b * c.num_heads + h) * c.q_len + i) * c.head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    const int64_t extra = mask_row(c, b, h, i);
    std::vector<double> logits(static_cast<size_t>(c.kv_len));
    for (int64_t j = 0; j < c.kv_len; j++) {
        double &logit = logits[static_cast<size_t>(j)];
        logit = -std::numeric_limits<double>::infinity();
        if (!visible(c, i, j) || (mask_elements(c) > 0 && t.mask[extra + j] == 0)) {
            continue;
        }
        const float *k = t.k + (kv_head * c.kv_len + j) * c.head_dim;
        double dot = 0;
        for (int32_t d = 0; d < c.head_dim; d++) {
            dot += static_cast<double>(q[d]) * k[d];
        }
        logit = dot * scale + (bias_elements(c) > 0 ? t.bias[extra + j] : 0.f);
    }
    return logits;
}

Reference reference_row(const Case &c, const Tensors &t, int64_t b, int64_t h, int64_t i) {
    const std::vector<double> logits = logits_of(c, t, b, h, i);
    const double row_max = *std::max_element(logits.begin(), logits.end());
    const int64_t kv_head = b * c.num_kv_heads + h / (c.num_heads / c.num_kv_heads);
    Reference row{std::vector<double>(static_cast<size_t>(c.head_dim_v), 0.0)};
    double row_sum = 0;
    for (int64_t j = 0; j < c.kv_len; j++) {
        const double logit = logits[static_cast<size_t>(j)];
        if (std::isinf(logit)) {
            continue;
        }
        const double weight = std::exp(logit - row_max);
        const float *v = t.v + (kv_head * c.kv_len + j) * c.head_dim_v;
        row_sum += weight;
        row.largest_logit = std::max(row.largest_logit, std::fabs(logit));
        for (size_t d = 0; d < row.out.size(); d++) {
            row.out[d] += weight * v[d];
            row.largest_value = std::max(row.largest_value, std::fabs(static_cast<double>(v[d])));
        }
    }
    for (double &value : row.out) {
        value = row_sum > 0 ? value / row_sum : 0;
    }
    return row;
}

}  // namespace

CheckResult compare_sampled_rows(const Case &c, const float *q, const float *k, const float *v, const uint8_t *mask,
                                 const float *bias, const float *out) {
    std::mt19937 random(5);
    const auto below = [&](int32_t n) { return static_cast<int64_t>(random() % static_cast<uint32_t>(n)); };
    std::set<int64_t> rows = {0, c.q_len - 1};
    for (int n = 0; n < 14; n++) {
        rows.insert(below(c.q_len));
    }
    CheckResult result{0, 0, 0};
    double square_sum = 0, count = 0;
    for (int pair = 0; pair < 4; pair++) {
        const int64_t b = below(c.batch), h = below(c.num_heads);
        for (const int64_t i : rows) {
            const Reference row = reference_row(c, {q, k, v, mask, bias}, b, h, i);
            const double bound = (8 + row.largest_logit) * std::ldexp(1.0, -23) * row.largest_value;
            const float *got = out + ((b * c.num_heads + h) * c.q_len + i) * c.head_dim_v;
            for (size_t d = 0; d < row.out.size(); d++) {
                const double distance = std::fabs(got[d] - row.out[d]);
                const double error = std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
                result.max_error = std::max(result.max_error, error);
                result.bound_ratio = std::max(result.bound_ratio, error / bound);
                square_sum += error * error;
                count += 1;
            }
        }
    }
    result.rms = std::sqrt(square_sum / count);
    return result;
}

}  // namespace heed_bench
