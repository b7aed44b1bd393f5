#include <heed/heed.h>
#include <stdio.h>
#include <stdlib.h>

static heed_tensor zeros(int64_t size) { return (heed_tensor){calloc((size_t)size, sizeof(float)), size, HEED_F32}; }

int main(void) {
    heed_problem problem;
    heed_problem_init(&problem);  // sets every default; tensors are packed [batch, len, heads, head_dim]
    problem.batch = 1, problem.causal = true;
    problem.num_heads = 32, problem.num_kv_heads = 8;  // grouped-query attention
    problem.head_dim = problem.head_dim_v = 128;
    problem.max_q_len = problem.max_kv_len = 2048;

    heed_plan *plan;  // validates shapes and strides, chooses the kernel; CPU work alone
    if (heed_plan_create(&problem, &plan) != HEED_OK) return puts(heed_last_error()), 1;
    puts(heed_plan_explain(plan));  // every candidate kernel, and why not

    heed_args args;
    heed_args_init(&args);
    args.q = zeros(2048 * 32 * 128), args.out = zeros(2048 * 32 * 128);
    args.k = zeros(2048 * 8 * 128), args.v = zeros(2048 * 8 * 128);
    args.workspace_bytes = heed_plan_workspace_bytes(plan);
    args.workspace = aligned_alloc(128, args.workspace_bytes);  // execute itself allocates nothing
    if (heed_execute(plan, &args) != HEED_OK) return puts(heed_last_error()), 1;
    heed_plan_destroy(plan);
    return 0;
}
