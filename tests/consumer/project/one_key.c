/* From C: one visible key gives its value. */
#include <heed/heed.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    heed_problem problem;
    heed_args args;
    heed_plan *plan = NULL;
    float q[128], k[128], v[128], out[128];
    int d, good = 1;
    for (d = 0; d < 128; d++) q[d] = k[d] = 0.5f, v[d] = (float)d, out[d] = -1;
    heed_problem_init(&problem);
    problem.batch = problem.num_heads = problem.num_kv_heads = problem.max_q_len = problem.max_kv_len = 1;
    problem.head_dim = problem.head_dim_v = 128;
    if (heed_plan_create(&problem, &plan) != HEED_OK) {
        puts(heed_last_error());
        return 1;
    }
    heed_args_init(&args);
    args.q.data = q, args.k.data = k, args.v.data = v, args.out.data = out;
    args.q.size = args.k.size = args.v.size = args.out.size = 128;
    args.workspace_bytes = (heed_plan_workspace_bytes(plan) + 127) / 128 * 128;
    args.workspace = aligned_alloc(128, args.workspace_bytes);
    if (heed_execute(plan, &args) != HEED_OK) {
        puts(heed_last_error());
        return 1;
    }
    for (d = 0; d < 128; d++) good = good && out[d] == (float)d;
    printf("%s: %s\n", heed_plan_kernel_name(plan), good ? "right" : "WRONG");
    free(args.workspace);
    heed_plan_destroy(plan);
    return good ? 0 : 1;
}
