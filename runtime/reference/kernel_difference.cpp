#include "runtime/reference/kernel_difference.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "heed/heed.hpp"
#include "runtime/reference/attention.h"
#include "runtime/reference/case_call.h"
#include "runtime/reference/forced_kernel.h"
#include "runtime/reference/make_case.h"
#include "runtime/reference/reference_case.h"

namespace heed_reference {
namespace {

constexpr int32_t page_size = 16;

float largest(const std::vector<float> &values) {
    float most = 0;
    for (const float v : values) most = std::max(most, std::fabs(v));
    return most;
}

// Both kernels sum the same products; they differ in the tree, and where one rounds a product that the other keeps
// inside an FMA. That moves a logit by at most head_dim / 2 ulp of its partial sums, a weight by as much relatively,
// and the output by two such steps. An output of 16 bits may then be rounded to the neighbour: a whole unit of the
// largest v.
double allowed(const Attention &a) {
    const double logit = a.head_dim * double{largest(a.q)} * largest(a.k) / std::sqrt(double(a.head_dim));
    const double unit = a.dtype == HEED_F16 ? 0x1p-10 : a.dtype == HEED_BF16 ? 0x1p-7 : 0;
    return std::ldexp((a.head_dim / 2.0 + a.kv_len / 2.0) * (1 + logit) * largest(a.v), -24) + unit * largest(a.v);
}

Attention random_attention(const heed_kernel_info &kernel, Rng *rng) {
    const bool paged = kernel.kv_storage == HEED_KV_PAGED;
    Attention a;
    a.batch = rng->between(1, 2);
    a.num_kv_heads = rng->between(1, 2);
    a.num_heads = a.num_kv_heads * rng->between(1, 5);
    a.q_len = kernel.phase == HEED_DECODE ? rng->between(1, 3) : rng->between(1, 70);
    a.kv_len = paged ? page_size * rng->between(1, 700 / page_size) : rng->between(1, 700);
    a.head_dim = kernel.head_dim == 0 ? 57 : kernel.head_dim;
    a.head_dim_v = kernel.head_dim_v == 0 ? 40 : kernel.head_dim_v;
    a.dtype = kernel.dtype;
    a.int8_kv = kernel.kv_dtype == HEED_I8;
    fill(&a, [&] { return rng->normal(); });
    a.position = rng->chance(0.5) ? HEED_BOTTOM_RIGHT : HEED_TOP_LEFT;
    a.causal = rng->chance(0.5);
    if (rng->chance(0.3)) a.window_left = rng->below(200);
    if (rng->chance(0.3)) a.window_right = rng->below(50);
    if (rng->chance(0.5) || paged) {
        for (int32_t b = 0; b < a.batch; b++) a.kv_lens.push_back(rng->between(0, a.kv_len));
    }
    if (kernel.features & HEED_FEATURE_BIAS) {
        add_bias(&a, {0, rng->chance(0.5) ? 1 : 0, 0, 0}, rng);
        add_mask(&a, {1, 0, rng->chance(0.5) ? 1 : 0, 0}, 0.7, rng);
    }
    return a;
}

struct Results {
    std::vector<float> out, lse;
};

Results run(const Case &c, const Attention &a, const std::string &kernel) {
    heed_problem problem = c.problem;
    problem.max_threads = 1;
    const ForcedKernel forced(kernel);
    const heed::Plan plan(problem);
    if (plan.kernel_name() != kernel) throw std::logic_error("another kernel ran");
    Array out = make_out(c), lse = make_lse(c);
    heed_args args = make_args(c, out, lse);
    const heed::Workspace workspace = plan.make_workspace();
    workspace.attach(args);
    plan.execute(args);
    return {out_rows(c, a, out), lse_rows(c, a, lse)};
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

std::string kernel_difference(const heed_kernel_info &kernel, const std::string &other, int num_calls) {
    Rng rng(7);
    for (int n = 0; n < num_calls; n++) {
        const Attention a = random_attention(kernel, &rng);
        const Case c = make_case(a, kernel.kv_storage == HEED_KV_PAGED ? page_size : 0);
        const Results got = run(c, a, kernel.name), expected = run(c, a, other);
        const double most = allowed(a);
        std::string found = first_difference("out", got.out, expected.out, [&](float) { return most; });
        if (found.empty()) {
            found = first_difference("lse", got.lse, expected.lse,
                                     [&](float lse) { return most * (1 + std::fabs(double{lse})); });
        }
        if (!found.empty()) return "random problem " + std::to_string(n) + ": " + found;
    }
    return "";
}

}  // namespace heed_reference
