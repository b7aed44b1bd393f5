// Plans for CUDA: pure CPU work. Needs no driver, and loads none.
#include <algorithm>

#include "runtime/workspace.h"
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fixture.h"

namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CudaPlan : public ::testing::Test {
protected:
    void TearDown() override {
        unsetenv("HEED_FORCE_KERNEL");
        EXPECT_FALSE(fake::is_loaded());
    }
    static std::string kernel_of(const heed_problem &problem) {
        return heed_plan_kernel_name(make_plan(problem).get());
    }
    static void expect_unsupported(const heed_problem &problem, const std::string &sentence) {
        make_plan(problem, HEED_UNSUPPORTED);
        EXPECT_THAT(heed_last_error(), HasSubstr(sentence));
    }
};

TEST_F(CudaPlan, EachDeviceHasItsKernels) {
    heed_problem problem = cuda_problem();
    EXPECT_EQ(kernel_of(problem), stub::f16_kernel);
    problem.has_mask = true;
    EXPECT_EQ(kernel_of(problem), stub::f16_wide);
    problem.dtype = problem.kv_dtype = HEED_F32;
    EXPECT_EQ(kernel_of(problem), stub::f32_kernel);
    problem.device = HEED_CPU;
    EXPECT_EQ(kernel_of(problem), stub::cpu_kernel);
}

TEST_F(CudaPlan, ForcedKernelsOfTheOtherDeviceAreRefused) {
    heed_problem problem = cuda_problem();
    problem.dtype = problem.kv_dtype = HEED_F32;
    setenv("HEED_FORCE_KERNEL", stub::cpu_kernel, 1);
    expect_unsupported(problem, "device is CUDA, the kernel runs on the CPU");
    problem.device = HEED_CPU;
    setenv("HEED_FORCE_KERNEL", stub::f32_kernel, 1);
    expect_unsupported(problem, "device is the CPU, the kernel runs on CUDA");
    problem.device = HEED_CUDA;
    EXPECT_EQ(kernel_of(problem), stub::f32_kernel);
}

TEST_F(CudaPlan, ExplainNamesTheKernelsOfTheDevice) {
    const PlanPtr plan = make_plan(cuda_problem());
    const std::string text = heed_plan_explain(plan.get());
    EXPECT_THAT(text, HasSubstr(std::string("  ") + stub::f16_kernel + ": taken, prefill (q_len 100 > 4)"));
    EXPECT_THAT(text, HasSubstr(std::string("  ") + stub::f16_wide + ": could serve, but has general head dims"));
    EXPECT_THAT(text, HasSubstr(std::string("  ") + stub::f32_kernel + ": dtype is f16, the kernel has f32"));
    EXPECT_THAT(text, Not(HasSubstr(stub::cpu_kernel)));
    EXPECT_THAT(text, HasSubstr("  not looked at: 1 kernels of the CPU\n"));
    EXPECT_THAT(text, HasSubstr("workspace: " + std::to_string(heed_plan_workspace_bytes(plan.get())) +
                                " bytes of device memory\n"));
    EXPECT_THAT(text, HasSubstr("metadata: none is read"));
    EXPECT_THAT(text, HasSubstr("that of the context that was current, 8.0 or newer without one"));

    heed_problem problem = cuda_problem(33);
    problem.has_kv_lens = true;
    problem.cuda_capability = 90;
    EXPECT_THAT(heed_plan_explain(make_plan(problem).get()),
                HasSubstr("metadata: from the host, 2 launches of write_metadata"));
    EXPECT_THAT(heed_plan_explain(make_plan(problem).get()), Not(HasSubstr("compute capability:")));
    problem.metadata_on_device = true;
    EXPECT_THAT(heed_plan_explain(make_plan(problem).get()), HasSubstr("read by sequences_sm75"));

    heed_problem on_cpu = cuda_problem();
    on_cpu.device = HEED_CPU;
    on_cpu.dtype = on_cpu.kv_dtype = HEED_F32;
    EXPECT_THAT(heed_plan_explain(make_plan(on_cpu).get()), HasSubstr("  not looked at: 4 kernels of CUDA\n"));
}

// Decode kernels are preferred up to the same q_len as on the CPU, and their splits follow max_kv_len alone.
TEST_F(CudaPlan, DecodeKernels) {
    heed_problem problem = cuda_problem(2, 4, 5000);
    problem.head_dim = problem.head_dim_v = 128;
    EXPECT_EQ(kernel_of(problem), stub::decode_kernel);
    const PlanPtr plan = make_plan(problem);
    EXPECT_EQ(heed_plan_num_splits(plan.get()), 10);
    EXPECT_THAT(heed_plan_explain(plan.get()), HasSubstr("splits: 10 of 512 keys, from max_kv_len 5000\n"));
    EXPECT_THAT(heed_plan_explain(plan.get()), HasSubstr("splits: merged by merge_splits_f16_sm75\n"));
    const size_t lse_bytes = 2 * 4 * 4 * 4, state_bytes = (128 + 8) * 4;
    EXPECT_EQ(heed_plan_workspace_bytes(plan.get()), lse_bytes + 2 * 4 * 4 * 10 * state_bytes);
    problem.num_splits = 1;
    EXPECT_EQ(heed_plan_workspace_bytes(make_plan(problem).get()), lse_bytes);
    problem.max_q_len = 5;
    EXPECT_EQ(kernel_of(problem), stub::f16_wide);
}

TEST_F(CudaPlan, ComputeCapability) {
    heed_problem problem = cuda_problem();
    for (const int32_t capability : {0, 80, 86, 90, 120}) {
        problem.cuda_capability = capability;
        EXPECT_EQ(kernel_of(problem), stub::f16_kernel) << capability;
    }
    problem.cuda_capability = 75;
    expect_unsupported(problem, "the kernel needs compute capability 8.0, the chip has less");
    problem.dtype = problem.kv_dtype = HEED_F32;
    EXPECT_EQ(kernel_of(problem), stub::f32_kernel);
    problem.cuda_capability = 70;
    expect_unsupported(problem, "the kernel needs compute capability 7.5, the chip has less");
    problem.cuda_capability = -1;
    make_plan(problem, HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("cuda_capability is -1"));
}

TEST_F(CudaPlan, FewQueriesRunPrefillKernels) {
    heed_problem problem = cuda_problem(2, 1);
    const PlanPtr plan = make_plan(problem);
    EXPECT_STREQ(heed_plan_kernel_name(plan.get()), stub::f16_kernel);
    EXPECT_THAT(heed_plan_explain(plan.get()), HasSubstr("though decode is preferred"));
    problem.num_splits = 4;
    EXPECT_EQ(heed_plan_num_splits(make_plan(problem).get()), 1);
}

TEST_F(CudaPlan, WhatNoKernelServes) {
    heed_problem problem = cuda_problem();
    problem.dropout_p = 0.5f;
    expect_unsupported(problem, std::string(stub::f16_wide) + ": the kernel has no dropout");
    problem = cuda_problem();
    problem.head_dim_v = 257;
    expect_unsupported(problem, std::string(stub::f16_wide) + ": head_dim_v is 257, the kernel serves up to 256");
    problem.head_dim_v = 256;
    EXPECT_EQ(kernel_of(problem), stub::f16_wide);
    problem = cuda_problem();
    problem.kv_dtype = HEED_I8;
    expect_unsupported(problem, std::string(stub::f16_wide) + ": kv_dtype is i8, the kernel has f16");
    problem = cuda_problem();
    problem.kv_storage = HEED_KV_PAGED;
    problem.has_kv_lens = true;
    problem.num_pages = problem.page_size = problem.max_pages_per_seq = 16;
    expect_unsupported(problem, std::string(stub::f16_wide) + ": kv_storage is paged, the kernel has contiguous");
}

TEST_F(CudaPlan, MetadataOnDeviceIsForCuda) {
    heed_problem problem = cuda_problem();
    problem.metadata_on_device = true;
    EXPECT_EQ(kernel_of(problem), stub::f16_kernel);
    problem.device = HEED_CPU;
    make_plan(problem, HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("metadata_on_device is 1 with HEED_CPU; it must be 0"));
}

TEST_F(CudaPlan, Workspace) {
    const auto bytes = [](const heed_problem &p) { return heed_plan_workspace_bytes(make_plan(p).get()); };
    heed_problem problem = cuda_problem(3, 7, 130);
    problem.want_lse = true;
    EXPECT_EQ(bytes(problem), 0u);  // nothing but the tensors
    problem.position = HEED_BOTTOM_RIGHT;
    EXPECT_EQ(bytes(problem), 0u);
    problem.max_threads = 64;
    EXPECT_EQ(bytes(problem), 0u);
    problem.position = HEED_EXPLICIT;
    EXPECT_EQ(bytes(problem), 128u);  // three lines of 32 bytes
    problem.batch = 5;
    EXPECT_EQ(bytes(problem), 256u);
    problem.want_lse = false;
    EXPECT_EQ(bytes(problem), 256u + (5 * 7 * 4 * 4 + 127) / 128 * 128);
    problem.max_q_len = 0;
    EXPECT_EQ(bytes(problem), 0u);
}

// A layer's workspace on the CPU does not pay for CUDA kernels.
TEST_F(CudaPlan, MostWorkspaceIsOfTheDevice) {
    heed_problem problem = cuda_problem();
    problem.dtype = problem.kv_dtype = HEED_F32;
    EXPECT_LT(heed::most_workspace_bytes(problem), 16384);
    problem.device = HEED_CPU;
    problem.max_threads = 4;
    EXPECT_GE(heed::most_workspace_bytes(problem), 4 * 1024);
    problem.dtype = problem.kv_dtype = HEED_F16;
    EXPECT_EQ(heed::most_workspace_bytes(problem), 0);  // no kernel of the CPU has f16
}

TEST_F(CudaPlan, Limits) {
    constexpr int64_t limit = int64_t{1} << 31;
    heed_problem problem = cuda_problem(64, 1 << 20, 1 << 20);  // 2^34 elements of q and k
    problem.num_heads = problem.num_kv_heads = 4;
    problem.want_lse = true;
    EXPECT_EQ(kernel_of(problem), stub::f16_kernel);
    problem = cuda_problem();
    problem.k_layout = {{limit, 128, 64, 1}};
    expect_unsupported(problem, "k_layout.stride[0] is 2147483648");
    problem.k_layout = {{limit - 1, 128, 64, 1}};
    EXPECT_EQ(kernel_of(problem), stub::f16_kernel);
    problem = cuda_problem(1 << 20, 128, 8);
    problem.num_heads = problem.num_kv_heads = 1 << 10;  // 2 blocks of each
    problem.head_dim = problem.head_dim_v = 64;
    problem.want_lse = true;
    expect_unsupported(problem, "their blocks of 64 query rows");
    problem.max_q_len = 64;
    EXPECT_EQ(kernel_of(problem), stub::f16_kernel);
    problem = cuda_problem(1, 1 << 30, 1 << 29);
    expect_unsupported(problem, "num_heads is 4 and max_q_len is 1073741824; without lse");
    problem.want_lse = true;
    EXPECT_EQ(kernel_of(problem), stub::f16_kernel);
    problem.max_kv_len = 1 << 30;
    expect_unsupported(problem, "together they must stay below 2^31");
}

TEST_F(CudaPlan, EmptyProblemsAndBadPointersNeedNoDriver) {
    for (const bool no_batch : {true, false}) {
        CudaCall call(no_batch ? cuda_problem(0) : cuda_problem(2, 0));
        EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
    }
    CudaCall call(cuda_problem());
    call.args.q.data = nullptr;
    call.expect_refused(HEED_INVALID_ARGUMENT, "q is NULL");
    call.args.q.data = call.args.out.data;
    call.expect_refused(HEED_INVALID_ARGUMENT, "out overlaps q");

    heed_problem problem = cuda_problem();
    problem.position = HEED_EXPLICIT;
    problem.metadata_on_device = true;
    CudaCall on_device(problem);
    on_device.args.q_offsets = reinterpret_cast<const int32_t *>(CudaCall::address(10));
    on_device.args.device_status = static_cast<int32_t *>(on_device.args.out.data) + 1;
    on_device.expect_refused(HEED_INVALID_ARGUMENT, "out overlaps device_status");
    on_device.args.device_status = reinterpret_cast<int32_t *>(CudaCall::address(10));
    on_device.expect_refused(HEED_INVALID_ARGUMENT, "device_status overlaps q_offsets");
}

// Sequences without any queries: their metadata is checked, and there is nothing to launch.
TEST_F(CudaPlan, NoQueries) {
    heed_problem problem = cuda_problem(2, 8, 16);
    problem.q_storage = HEED_Q_VARLEN;
    problem.kv_storage = HEED_KV_VARLEN;
    problem.total_kv = 5;
    CudaCall call(problem);
    const int32_t queries[] = {0, 0, 0};
    int32_t keys[] = {0, 3, 5};
    call.args.cu_seqlens_q = queries;
    call.args.cu_seqlens_kv = keys;
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
    keys[2] = 6;
    call.expect_refused(HEED_INVALID_ARGUMENT, "cu_seqlens_kv[2] is 6");
}

TEST_F(CudaPlan, ProbabilitiesNeedAKernel) {
    heed_problem problem = cuda_problem();
    problem.dtype = problem.kv_dtype = HEED_F32;
    const CudaCall call(problem);
    const heed_tensor probs = {reinterpret_cast<void *>(uintptr_t{1} << 46), int64_t{1} << 30, HEED_F32};
    EXPECT_EQ(heed_attention_probs(call.plan.get(), &call.args, HEED_PROBS_SOFTMAX, &probs, nullptr), HEED_NO_DEVICE);
    EXPECT_THAT(heed_last_error(), HasSubstr("attention_probs for f32"));
}

}  // namespace
