// Kernels of this project's own, and nothing else: the right kernel runs, numbers are right, other head dims are
// refused.
#include <heed/heed.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

// One head, full attention, packed; out within a few rounding errors of sum(weights * v) with |v| <= 1.
bool check(int q_len, int head_dim, int head_dim_v, const char *kernel) {
    const int kv_len = 50;
    heed_problem problem;
    heed_problem_init(&problem);
    problem.batch = problem.num_heads = problem.num_kv_heads = 1;
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim_v;
    problem.max_q_len = q_len;
    problem.max_kv_len = kv_len;
    heed_plan *plan = nullptr;
    if (heed_plan_create(&problem, &plan) != HEED_OK) {
        std::printf("plan: %s\n", heed_last_error());
        return false;
    }
    std::vector<float> q(q_len * head_dim), k(kv_len * head_dim), v(kv_len * head_dim_v), out(q_len * head_dim_v);
    for (auto *tensor : {&q, &k, &v}) {
        for (size_t i = 0; i < tensor->size(); i++) (*tensor)[i] = std::sin(float(i) * float(tensor->size()));
    }
    heed_args args;
    heed_args_init(&args);
    args.q = {q.data(), int64_t(q.size()), HEED_F32};
    args.k = {k.data(), int64_t(k.size()), HEED_F32};
    args.v = {v.data(), int64_t(v.size()), HEED_F32};
    args.out = {out.data(), int64_t(out.size()), HEED_F32};
    args.workspace_bytes = (heed_plan_workspace_bytes(plan) + 127) / 128 * 128;
    args.workspace = std::aligned_alloc(128, args.workspace_bytes);
    bool good = heed_execute(plan, &args) == HEED_OK && std::strcmp(heed_plan_kernel_name(plan), kernel) == 0;
    for (int i = 0; i < q_len; i++) {
        std::vector<double> weights(kv_len), expected(head_dim_v);
        double sum = 0;
        for (int j = 0; j < kv_len; j++) {
            double dot = 0;
            for (int d = 0; d < head_dim; d++) dot += double(q[i * head_dim + d]) * k[j * head_dim + d];
            sum += weights[j] = std::exp(dot / std::sqrt(double(head_dim)));
        }
        for (int j = 0; j < kv_len; j++) {
            for (int d = 0; d < head_dim_v; d++) expected[d] += weights[j] / sum * v[j * head_dim_v + d];
        }
        // |logit| <= sqrt(head_dim): (8 + S) * 2^-23 * Vmax.
        const double bound = std::ldexp(8 + std::sqrt(double(head_dim)), -23);
        for (int d = 0; d < head_dim_v; d++) good = good && std::fabs(out[i * head_dim_v + d] - expected[d]) <= bound;
    }
    std::printf("%s: %s\n", heed_plan_kernel_name(plan), good ? "right" : "WRONG");
    std::free(args.workspace);
    heed_plan_destroy(plan);
    return good;
}

bool refuses(int head_dim) {
    heed_problem problem;
    heed_problem_init(&problem);
    problem.batch = problem.num_heads = problem.num_kv_heads = problem.max_q_len = problem.max_kv_len = 1;
    problem.head_dim = problem.head_dim_v = head_dim;
    heed_plan *plan = nullptr;
    const char *const line = "heed_add_kernels(<target> PHASES decode DTYPES f32 HEAD_DIMS 64 ISAS ";
    return heed_plan_create(&problem, &plan) == HEED_UNSUPPORTED && plan == nullptr &&
           std::strstr(heed_last_error(), line) != nullptr;
}

// The parameters of tuned.json.
bool is_tuned(const char *kernel) {
    heed_kernel_info info{};
    info.struct_size = sizeof info;
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        if (heed_kernel_get_info(i, &info) == HEED_OK && std::strcmp(info.name, kernel) == 0) {
            return info.row_block == 16 && info.kv_block == 96;
        }
    }
    return false;
}

}  // namespace

int main() {
    const bool good = heed_kernel_count() == 6 && is_tuned("attention_prefill_f32_d80_contiguous_x86_64") &&
                      check(20, 80, 80, "attention_prefill_f32_d80_contiguous_x86_64") &&
                      check(20, 128, 64, "attention_prefill_f32_d128x64_contiguous_x86_64") &&
                      check(2, 80, 80, "attention_decode_f32_d80_gqa_contiguous_x86_64") && refuses(64);
    return good ? 0 : 1;
}
