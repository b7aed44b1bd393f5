// CUDA problems and calls on the stub kernels. Addresses of tensors are never looked at: they are numbers.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "heed/heed.h"
#include "tests/cuda/stub_kernels.h"
#include "tests/support/plan.h"

inline heed_problem cuda_problem(int32_t batch = 2, int32_t q_len = 100, int32_t kv_len = 130) {
    heed_problem problem;
    heed_problem_init(&problem);
    problem.device = HEED_CUDA;
    problem.dtype = problem.kv_dtype = HEED_F16;
    problem.batch = batch;
    problem.max_q_len = q_len;
    problem.max_kv_len = kv_len;
    problem.num_heads = 4;
    problem.num_kv_heads = 2;
    problem.head_dim = problem.head_dim_v = 64;
    return problem;
}

inline heed_problem cpu_problem() {
    heed_problem problem = cuda_problem();
    problem.device = HEED_CPU;
    problem.dtype = problem.kv_dtype = HEED_F32;
    problem.max_q_len = 1;  // more would have keys copied, from addresses that are made up
    return problem;
}

// One call: tensors at made-up addresses 2^32 apart, a workspace in host memory that a fake driver may write.
struct CudaCall {
    explicit CudaCall(const heed_problem &p)
        : problem(p), plan(make_plan(p)), memory(heed_plan_workspace_bytes(plan.get()) / 4 + 32) {
        heed_args_init(&args);
        const auto tensor = [](uint64_t n, heed_dtype dtype) {
            return heed_tensor{reinterpret_cast<void *>(address(n)), int64_t{1} << 30, dtype};
        };
        args.q = tensor(1, p.dtype);
        args.k = tensor(2, p.kv_dtype);
        args.v = tensor(3, p.kv_dtype);
        args.out = tensor(4, p.dtype);
        if (p.want_lse) args.lse = tensor(5, HEED_F32);
        if (p.has_mask) args.mask = tensor(6, HEED_U8);
        if (p.has_bias) args.bias = tensor(7, p.bias_dtype);
        if (p.has_sink) args.sink = reinterpret_cast<const float *>(address(8));
        if (p.has_alibi) args.alibi_slopes = reinterpret_cast<const float *>(address(9));
        const auto begin = reinterpret_cast<uintptr_t>(memory.data());
        args.workspace = memory.data() + ((begin + 127) / 128 * 128 - begin) / 4;
        args.workspace_bytes = heed_plan_workspace_bytes(plan.get());
    }

    static uint64_t address(uint64_t n) { return n << 32; }
    const int32_t *table() const { return static_cast<const int32_t *>(args.workspace); }
    heed_status execute() { return heed_execute(plan.get(), &args); }
    void expect_refused(heed_status status, const std::string &sentence) {
        EXPECT_EQ(execute(), status);
        EXPECT_THAT(heed_last_error(), ::testing::HasSubstr(sentence));
    }

    heed_problem problem;
    PlanPtr plan;
    std::vector<int32_t> memory;
    heed_args args;
};
