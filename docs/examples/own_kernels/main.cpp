// Prints the kernels that the project made, runs one of them, and asks for one that it did not make.
#include <cmath>
#include <cstdio>
#include <heed/heed.hpp>

namespace {

heed::Problem make_problem(int32_t head_dim, int32_t head_dim_v) {
    heed::Problem problem;
    problem.batch = 2;
    problem.num_heads = problem.num_kv_heads = 4;
    problem.head_dim = head_dim;
    problem.head_dim_v = head_dim_v;
    problem.max_q_len = problem.max_kv_len = 100;
    problem.causal = true;
    problem.softcap = 30;
    return problem;
}

}  // namespace

int main() {
    for (const heed_kernel_info &kernel : heed::kernels()) std::printf("%s\n", kernel.name);

    const heed::Problem problem = make_problem(128, 96);
    const heed::Plan plan(problem);
    const size_t tokens = 2 * 100 * 4;
    const std::vector<float> q(tokens * 128, 0.5f), k(tokens * 128, 0.25f), v(tokens * 96, 1.0f);
    std::vector<float> out(tokens * 96);
    heed::Args args;
    args.q = heed::tensor(q.data(), q.size());
    args.k = heed::tensor(k.data(), k.size());
    args.v = heed::tensor(v.data(), v.size());
    args.out = heed::tensor(out.data(), out.size());
    const heed::Workspace workspace = plan.make_workspace();
    workspace.attach(args);
    plan.execute(args);
    std::printf("%s: a mean of ones is %f\n", plan.kernel_name().c_str(), out[0]);

    // The message says which call of heed_add_kernels would serve the problem.
    try {
        const heed::Plan missing(make_problem(80, 80));
        return 1;
    } catch (const heed::Error &error) {
        std::printf("%s: %s\n", heed_status_name(error.status()), error.what());
    }
    return std::fabs(out[0] - 1) < 1e-6f ? 0 : 1;
}
