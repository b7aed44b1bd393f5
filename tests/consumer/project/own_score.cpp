// The score function of near.cpp hides what a window of the contract hides.
#include <heed/heed.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int len = 300, head_dim = 64;

std::vector<float> attention(const std::vector<float> &tokens, const char *score_mod) {
    heed::Problem problem;
    problem.batch = problem.num_heads = problem.num_kv_heads = 1;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.max_q_len = problem.max_kv_len = len;
    problem.score_mod = score_mod;
    if (score_mod == nullptr) problem.window_left = 3;
    const heed::Plan plan(problem);
    std::printf("%s\n", plan.kernel_name().c_str());
    const heed::Workspace workspace(plan.workspace_bytes());
    std::vector<float> out(tokens.size());
    heed::Args args;
    args.q = args.k = args.v = heed::tensor(tokens.data(), tokens.size());
    args.out = heed::tensor(out.data(), out.size());
    workspace.attach(args);
    plan.execute(args);
    return out;
}

}  // namespace

int main() {
    std::vector<float> tokens(len * head_dim);
    for (size_t i = 0; i < tokens.size(); i++) tokens[i] = std::sin(float(i));
    const std::vector<float> got = attention(tokens, "near"), expected = attention(tokens, nullptr);
    double worst = 0;
    for (size_t i = 0; i < got.size(); i++) worst = std::fmax(worst, std::fabs(got[i] - expected[i]));
    std::printf("largest difference: %g\n", worst);
    return worst < 1e-5 ? 0 : 1;
}
