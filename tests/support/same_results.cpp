#include "same_results.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace heed_test {
namespace {

float largest(const std::vector<float> &values) {
    float most = 0;
    for (const float v : values) most = std::max(most, std::fabs(v));
    return most;
}

// Both rows sum the same products; they differ in the tree, and where one rounds a product that the other keeps inside
// an FMA. That moves a logit by at most head_dim / 2 ulp of its partial sums, a weight by as much relatively, and the
// output by two such steps. An output of 16 bits may then be rounded to the neighbour: a whole unit of the largest v.
double allowed(const Attention &a) {
    const double logit = a.head_dim * double{largest(a.q)} * largest(a.k) / std::sqrt(double(a.head_dim));
    const double unit = a.dtype == HEED_F16 ? 0x1p-10 : a.dtype == HEED_BF16 ? 0x1p-7 : 0;
    return std::ldexp((a.head_dim / 2.0 + a.kv_len / 2.0) * (1 + logit) * largest(a.v), -24) + unit * largest(a.v);
}

Attention random_attention(const Row &row, Rng *rng) {
    Shape shape = row.shape();
    shape.batch = rng->between(1, 2);
    shape.num_kv_heads = rng->between(1, 2);
    shape.num_heads = shape.num_kv_heads * rng->between(1, 5);
    shape.q_len = row.decode() ? rng->between(1, 3) : rng->between(1, 70);
    shape.kv_len = rng->between(1, 700);
    Attention a = row.attention(shape, Data::normal, rng->bits());
    a.position = rng->chance(0.5) ? HEED_BOTTOM_RIGHT : HEED_TOP_LEFT;
    a.causal = rng->chance(0.5);
    if (rng->chance(0.3)) a.window_left = rng->below(200);
    if (rng->chance(0.3)) a.window_right = rng->below(50);
    if (rng->chance(0.5)) {
        for (int32_t b = 0; b < a.batch; b++) a.kv_lens.push_back(rng->between(0, a.kv_len));
    }
    if (row.has(HEED_FEATURE_BIAS)) {
        add_bias(&a, {0, rng->chance(0.5) ? 1 : 0, 0, 0}, rng);
        add_mask(&a, {1, 0, rng->chance(0.5) ? 1 : 0, 0}, 0.7, rng);
    }
    return a;
}

void run(Call &call) {
    if (call.run() != HEED_OK) throw std::runtime_error(heed_last_error());
}

// "" where each pair is as near as `most` of its expected value says, infinities equal.
template <class Most>
std::string first_difference(const char *what, const std::vector<float> &got, const std::vector<float> &expected,
                             Most most) {
    for (size_t i = 0; i < got.size(); i++) {
        const bool same = std::isinf(expected[i]) ? got[i] == expected[i]
                                                  : std::fabs(double{got[i]} - expected[i]) <= most(expected[i]);
        if (!same) {
            return std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got[i]) + ", not " +
                   std::to_string(expected[i]);
        }
    }
    return "";
}

}  // namespace

std::string difference(const Row &row, const std::string &other, int num_calls) {
    Rng rng(7);
    for (int n = 0; n < num_calls; n++) {
        const Attention a = random_attention(row, &rng);
        Call call(a, row.options()), expected(a, row.options().with_kernel(other));
        run(call);
        run(expected);
        if (call.kernel() != row.name || expected.kernel() != other) throw std::logic_error("another row ran");
        const double most = allowed(a);
        std::string found = first_difference("out", call.out(), expected.out(), [&](float) { return most; });
        if (found.empty()) {
            found = first_difference("lse", call.lse(), expected.lse(),
                                     [&](float lse) { return most * (1 + std::fabs(double{lse})); });
        }
        if (!found.empty()) return "random problem " + std::to_string(n) + ": " + found;
    }
    return "";
}

}  // namespace heed_test
