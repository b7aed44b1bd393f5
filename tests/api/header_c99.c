/* The headers are C99: this file is compiled with -std=c99 -pedantic. */
#include <heed/fields.h>

/* Runs attention over one key from C; returns the status. */
heed_status run_from_c(float *out);

heed_status run_from_c(float *out) {
    static float q[4], k[4], v[4] = {1, 2, 3, 4};
    static union {
        double align;
        char bytes[1 << 20];
    } memory;
    heed_problem problem;
    heed_args args;
    heed_plan *plan = NULL;
    heed_status status = heed_problem_init(&problem);
#define HEED_SET(name, initial, least, most, allowed) problem.name = initial;
    HEED_PROBLEM_FIELDS(HEED_SET)
#undef HEED_SET
    problem.batch = problem.num_heads = problem.num_kv_heads = problem.max_q_len = problem.max_kv_len = 1;
    problem.head_dim = problem.head_dim_v = 4;
    problem.max_threads = 1;
    if (status == HEED_OK) status = heed_plan_create(&problem, &plan);
    if (status == HEED_OK) status = heed_args_init(&args);
    if (status == HEED_OK) {
        const heed_tensor tensors[4] = {{q, 4, HEED_F32}, {k, 4, HEED_F32}, {v, 4, HEED_F32}, {out, 4, HEED_F32}};
        args.q = tensors[0];
        args.k = tensors[1];
        args.v = tensors[2];
        args.out = tensors[3];
        args.workspace = memory.bytes + (128 - (uintptr_t)memory.bytes % 128);
        args.workspace_bytes = sizeof(memory) - 128;
        status = heed_execute(plan, &args);
    }
    heed_plan_destroy(plan);
    return status;
}
