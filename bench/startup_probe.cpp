// Plans and runs one tiny problem, then leaves: its run time is the time from process start to first result.
// Exit status 0 when the result is right. bench/startup.py measures it.
#include <cmath>
#include <cstdlib>
#include <vector>

#include "heed/heed.h"

namespace {

constexpr int batch = 3, num_heads = 8, num_kv_heads = 4, len = 2, head_dim = 16;

heed_tensor tensor(std::vector<float> &data) { return {data.data(), static_cast<int64_t>(data.size()), HEED_F32}; }

}  // namespace

int main() {
    heed_problem problem;
    heed_problem_init(&problem);
    problem.batch = batch;
    problem.num_heads = num_heads;
    problem.num_kv_heads = num_kv_heads;
    problem.head_dim = problem.head_dim_v = head_dim;
    problem.max_q_len = problem.max_kv_len = len;
    heed_plan *plan = nullptr;
    if (heed_plan_create(&problem, &plan) != HEED_OK) {
        return 1;
    }
    // Equal keys weigh 1/2 each: the output is the mean of the values 1 and 2.
    std::vector<float> q(batch * len * num_heads * head_dim, 1.f), k(batch * len * num_kv_heads * head_dim, 0.5f), v(k),
        out(q.size(), 0.f);
    for (size_t i = 0; i < v.size(); i++) {
        v[i] = static_cast<float>(i / (num_kv_heads * head_dim) % len + 1);
    }
    const size_t bytes = (heed_plan_workspace_bytes(plan) + 127) / 128 * 128;
    heed_args args;
    heed_args_init(&args);
    args.q = tensor(q);
    args.k = tensor(k);
    args.v = tensor(v);
    args.out = tensor(out);
    args.workspace = bytes > 0 ? std::aligned_alloc(128, bytes) : nullptr;
    args.workspace_bytes = bytes;
    bool right = heed_execute(plan, &args) == HEED_OK;
    for (const float value : out) {
        right = right && std::fabs(value - 1.5f) <= 4 * 1.1920929e-7f;
    }
    std::free(args.workspace);
    heed_plan_destroy(plan);
    return right ? 0 : 1;
}
