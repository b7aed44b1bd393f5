#include "sampled_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "element_types.h"

namespace heed_bench {

namespace {

// One head of one sequence.
struct Head {
    int64_t b, h;
    std::vector<float> q, k, v, out;
};

struct Reference {
    std::vector<double> out, weight_noise;        // noise: sqrt(sum (p v)^2)
    double largest_logit = 0, largest_value = 0;  // of visible keys
};

std::vector<float> tokens(const heed_tensor &tensor, int64_t head, int64_t len, int64_t head_dim) {
    return widened(tensor.dtype, tensor.data, head * len * head_dim, len * head_dim);
}

// scales: [batch, kv_len, num_kv_heads]
void dequantise(const Case &c, const heed_tensor &scales, int64_t b, int64_t kv_head, std::vector<float> &x) {
    const float *scale = static_cast<const float *>(scales.data);
    const size_t head_dim = x.size() / static_cast<size_t>(c.kv_len);
    for (size_t n = 0; n < x.size(); n++) {
        x[n] *= scale[(b * c.kv_len + static_cast<int64_t>(n / head_dim)) * c.num_kv_heads + kv_head];
    }
}

Head head_of(const Case &c, const heed_args &args, int64_t b, int64_t h) {
    const int64_t kv_head = h / (c.num_heads / c.num_kv_heads);
    const int64_t head = b * c.num_heads + h, stored = b * c.num_kv_heads + kv_head;
    Head one{b,
             h,
             tokens(args.q, head, c.q_len, c.head_dim),
             tokens(args.k, stored, c.kv_len, c.head_dim),
             tokens(args.v, stored, c.kv_len, c.head_dim_v),
             tokens(args.out, head, c.q_len, c.head_dim_v)};
    if (c.kv_dtype == HEED_I8) {
        dequantise(c, args.k_scale, b, kv_head, one.k);
        dequantise(c, args.v_scale, b, kv_head, one.v);
    }
    return one;
}

// Where (b, h, i, 0) lies in a mask or bias of this case.
int64_t mask_row(const Case &c, int64_t b, int64_t h, int64_t i) {
    const std::array<int32_t, 4> shape = mask_shape(c);
    return ((b % shape[0] * shape[1] + h % shape[1]) * shape[2] + i) * shape[3];
}

// Logits of row i, -inf where a key is hidden.
std::vector<double> logits_of(const Case &c, const heed_args &args, const Head &head, int64_t i) {
    const float *q = head.q.data() + i * c.head_dim;
    const double scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
    const int64_t extra = mask_row(c, head.b, head.h, i);
    const auto *mask = static_cast<const uint8_t *>(args.mask.data);
    std::vector<float> bias(static_cast<size_t>(c.kv_len), 0.f);
    if (bias_elements(c) > 0) {
        bias = widened(args.bias.dtype, args.bias.data, extra, c.kv_len);
    }
    std::vector<double> logits(static_cast<size_t>(c.kv_len), -std::numeric_limits<double>::infinity());
    for (int64_t j = 0; j < c.kv_len; j++) {
        if (!visible(c, i, j) || (mask_elements(c) > 0 && mask[extra + j] == 0)) {
            continue;
        }
        const float *k = head.k.data() + j * c.head_dim;
        double dot = 0;
        for (int32_t d = 0; d < c.head_dim; d++) {
            dot += static_cast<double>(q[d]) * k[d];
        }
        logits[static_cast<size_t>(j)] = dot * scale + bias[static_cast<size_t>(j)];
    }
    return logits;
}

Reference reference_row(const Case &c, const heed_args &args, const Head &head, int64_t i) {
    const std::vector<double> logits = logits_of(c, args, head, i);
    const double row_max = *std::max_element(logits.begin(), logits.end());
    Reference row;
    row.out.resize(static_cast<size_t>(c.head_dim_v));
    row.weight_noise.resize(row.out.size());
    double row_sum = 0;
    for (int64_t j = 0; j < c.kv_len; j++) {
        const double logit = logits[static_cast<size_t>(j)];
        if (std::isinf(logit)) {
            continue;
        }
        const double weight = std::exp(logit - row_max);
        const float *v = head.v.data() + j * c.head_dim_v;
        row_sum += weight;
        row.largest_logit = std::max(row.largest_logit, std::fabs(logit));
        for (size_t d = 0; d < row.out.size(); d++) {
            row.out[d] += weight * v[d];
            row.weight_noise[d] += weight * v[d] * weight * v[d];
            row.largest_value = std::max(row.largest_value, std::fabs(static_cast<double>(v[d])));
        }
    }
    for (size_t d = 0; d < row.out.size(); d++) {
        row.out[d] = row_sum > 0 ? row.out[d] / row_sum : 0;
        row.weight_noise[d] = row_sum > 0 ? std::sqrt(row.weight_noise[d]) / row_sum : 0;
    }
    return row;
}

double allowed_error(const Case &c, const Reference &row, size_t d) {
    return (8 + row.largest_logit) * std::ldexp(1.0, -23) * row.largest_value +
           rounding(c.dtype) * (std::fabs(row.out[d]) + 2 * row.weight_noise[d]);
}

}  // namespace

CheckResult compare_sampled_rows(const Case &c, const heed_args &args) {
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
        const Head head = head_of(c, args, b, h);
        for (const int64_t i : rows) {
            const Reference row = reference_row(c, args, head, i);
            const float *got = head.out.data() + i * c.head_dim_v;
            for (size_t d = 0; d < row.out.size(); d++) {
                const double distance = std::fabs(got[d] - row.out[d]);
                const double error = std::isnan(distance) ? std::numeric_limits<double>::infinity() : distance;
                result.max_error = std::max(result.max_error, error);
                result.bound_ratio = std::max(result.bound_ratio, error / allowed_error(c, row, d));
                square_sum += error * error;
                count += 1;
            }
        }
    }
    result.rms = std::sqrt(square_sum / count);
    return result;
}

}  // namespace heed_bench
