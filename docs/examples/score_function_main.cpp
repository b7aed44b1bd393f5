// Runs the kernels of score_function.cpp, and compares them with a mask that says the same.
#include <cmath>
#include <cstdio>
#include <heed/heed.hpp>

namespace {

constexpr int32_t len = 300, heads = 2, head_dim = 64;
constexpr size_t elements = size_t{len} * heads * head_dim;

int32_t document_of(int32_t token) { return token / 70; }

std::vector<float> waves(float step) {
    std::vector<float> values(elements);
    for (size_t i = 0; i < elements; i++) values[i] = std::sin(step * static_cast<float>(i));
    return values;
}

heed::Problem make_problem() {
    heed::Problem problem;
    problem.batch = 1;
    problem.num_heads = problem.num_kv_heads = heads;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.max_q_len = problem.max_kv_len = len;
    problem.causal = true;
    return problem;
}

std::vector<float> attend(const heed::Problem &problem, heed::Args args) {
    static const std::vector<float> q = waves(0.7f), k = waves(0.3f), v = waves(0.1f);
    std::vector<float> out(elements);
    const heed::Plan plan(problem);
    const heed::Workspace workspace = plan.make_workspace();
    args.q = heed::tensor(q.data(), elements);
    args.k = heed::tensor(k.data(), elements);
    args.v = heed::tensor(v.data(), elements);
    args.out = heed::tensor(out.data(), elements);
    workspace.attach(args);
    plan.execute(args);
    std::printf("%s\n", plan.kernel_name().c_str());
    return out;
}

std::vector<float> by_mask() {
    std::vector<uint8_t> mask;
    for (int32_t i = 0; i < len; i++) {
        for (int32_t j = 0; j < len; j++) mask.push_back(document_of(i) == document_of(j));
    }
    heed::Problem problem = make_problem();
    problem.has_mask = true;
    problem.mask_shape[0] = problem.mask_shape[1] = 1;  // one for all sequences and heads
    heed::Args args;
    args.mask = heed::tensor(mask.data(), mask.size());
    return attend(problem, args);
}

// [call]
std::vector<float> by_score_function() {
    std::vector<int32_t> documents;
    for (int32_t token = 0; token < len; token++) documents.push_back(document_of(token));
    heed::Problem problem = make_problem();
    problem.score_mod = "score_function";  // the name of the file
    heed::Args args;
    args.score_buffers[0] = {documents.data(), len, HEED_I32};
    return attend(problem, args);
}
// [/call]

}  // namespace

int main() {
    const std::vector<float> expected = by_mask(), out = by_score_function();
    float worst = 0;
    for (size_t i = 0; i < elements; i++) worst = std::fmax(worst, std::fabs(out[i] - expected[i]));
    std::printf("largest difference: %g\n", worst);
    return worst < 1e-6f ? 0 : 1;
}
