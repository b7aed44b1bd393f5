// heed_attention_backward on CUDA, on the fake driver: which kernels it launches in which order, and what it refuses.
#include "heed/ops.h"
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fixture.h"

namespace {

using heed::Op;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

heed_problem backward_problem(int32_t batch = 2) {
    heed_problem problem = cuda_problem(batch);
    problem.want_lse = true;
    return problem;
}

struct BackwardCall : CudaCall {
    explicit BackwardCall(const heed_problem &p) : CudaCall(p) {
        gradients.struct_size = sizeof(gradients);
        gradients.dout = tensor(21, p.dtype);
        gradients.dq = tensor(22, p.dtype);
        gradients.dk = tensor(23, p.dtype);
        gradients.dv = tensor(24, p.dtype);
        const size_t bytes = heed_attention_backward_workspace_bytes(plan.get());
        memory.assign(bytes / sizeof(int32_t) + 64, 0);
        const auto begin = reinterpret_cast<uintptr_t>(memory.data());
        args.workspace = memory.data() + ((begin + 127) / 128 * 128 - begin) / sizeof(int32_t);
        args.workspace_bytes = bytes;
    }

    static heed_tensor tensor(uint64_t n, heed_dtype dtype) {
        return {reinterpret_cast<void *>(address(n)), int64_t{1} << 30, dtype};
    }
    heed_status backward() {
        stub::operations.clear();
        return heed_attention_backward(plan.get(), &args, &gradients);
    }
    void expect_refused(heed_status status, const std::string &sentence) {
        EXPECT_EQ(backward(), status);
        EXPECT_THAT(heed_last_error(), HasSubstr(sentence));
        EXPECT_THAT(stub::operations, ::testing::IsEmpty());
    }

    heed_gradients gradients = {};
};

class CudaBackward : public ::testing::Test {
protected:
    CudaBackward() { fake::set_current(&context_); }
    ~CudaBackward() override {
        fake::set_current(nullptr);
        driver_.fail.clear();
        driver_.capability = 80;
    }

    fake::Driver &driver_ = fake::driver();
    CUctx_st context_ = {78};
};

TEST_F(CudaBackward, LaunchesWhatIsWanted) {
    heed_problem problem = backward_problem();
    problem.has_bias = problem.has_sink = true;
    BackwardCall call(problem);
    EXPECT_EQ(call.backward(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::operations,
                ElementsAre(Op::attention_backward_stats, Op::attention_backward_keys, Op::attention_backward_queries));
    call.gradients.dk.data = nullptr;
    call.gradients.dq.data = nullptr;
    call.gradients.dbias = BackwardCall::tensor(25, HEED_F32);
    call.gradients.dsink = BackwardCall::tensor(26, HEED_F32);
    EXPECT_EQ(call.backward(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::operations, ElementsAre(Op::attention_backward_stats, Op::attention_backward_keys,
                                              Op::attention_backward_bias, Op::attention_backward_sinks));
}

TEST_F(CudaBackward, KernelsThatTheChipAndTheHeadsAllow) {
    heed_problem problem = backward_problem();
    problem.head_dim = 65;
    BackwardCall wide(problem);
    EXPECT_EQ(wide.backward(), HEED_OK) << heed_last_error();  // the stub of keys up to 128 says that it was queries
    EXPECT_THAT(stub::operations,
                ElementsAre(Op::attention_backward_stats, Op::attention_backward_queries, Op::attention_backward));
    driver_.capability = 75;
    CUctx_st old_chip = {79};
    fake::set_current(&old_chip);
    problem = backward_problem();
    problem.cuda_capability = 80;
    BackwardCall call(problem);
    EXPECT_EQ(call.backward(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::operations,
                ElementsAre(Op::attention_backward_stats, Op::attention_backward, Op::attention_backward));
}

TEST_F(CudaBackward, PlainKernelsWhereNothingChangesLogits) {
    BackwardCall plain(backward_problem());
    EXPECT_EQ(plain.backward(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::operations, ElementsAre(Op::attention_backward_stats, Op::attention_backward_keys_plain,
                                              Op::attention_backward_queries));  // there is no plain stub of queries
    heed_problem problem = backward_problem();
    problem.softcap = 20;
    BackwardCall capped(problem);
    EXPECT_EQ(capped.backward(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::operations,
                ElementsAre(Op::attention_backward_stats, Op::attention_backward_keys, Op::attention_backward_queries));
}

TEST_F(CudaBackward, MetadataGoesFirstAndIsChecked) {
    heed_problem problem = backward_problem(40);  // a launch takes the metadata of 32 sequences to the device
    problem.has_kv_lens = true;
    BackwardCall call(problem);
    std::vector<int32_t> lens(40, 20);
    call.args.kv_lens = lens.data();
    driver_.calls.clear();
    EXPECT_EQ(call.backward(), HEED_OK) << heed_last_error();
    EXPECT_EQ(std::count(driver_.calls.begin(), driver_.calls.end(), "cuLaunchKernel"), 2 + 3);
    lens[39] = 131;
    driver_.calls.clear();
    call.expect_refused(HEED_INVALID_ARGUMENT, "kv_lens[39] is 131");
    EXPECT_TRUE(driver_.calls.empty());
}

TEST_F(CudaBackward, TheFirstFailureEndsIt) {
    BackwardCall call(backward_problem());
    driver_.calls.clear();
    driver_.fail = {{"cuLaunchKernel", 700}};
    EXPECT_EQ(call.backward(), HEED_INTERNAL);
    EXPECT_THAT(heed_last_error(), HasSubstr("cuLaunchKernel failed with CUDA_ERROR_OF_TEST (700)"));
    EXPECT_EQ(std::count(driver_.calls.begin(), driver_.calls.end(), "cuLaunchKernel"), 1);
}

TEST_F(CudaBackward, NothingToLaunch) {
    heed_problem problem = backward_problem();
    problem.max_q_len = 0;
    BackwardCall no_queries(problem);
    EXPECT_EQ(no_queries.backward(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::operations, ElementsAre(Op::attention_backward_keys_plain));  // zeros
    problem.max_kv_len = 0;
    BackwardCall nothing(problem);
    EXPECT_EQ(nothing.backward(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::operations, ::testing::IsEmpty());
}

TEST_F(CudaBackward, Refusals) {
    heed_problem problem = backward_problem();
    problem.dtype = problem.kv_dtype = HEED_F32;
    BackwardCall no_kernel(problem);
    EXPECT_EQ(no_kernel.args.workspace_bytes, 0u);
    no_kernel.expect_refused(HEED_NO_DEVICE, "no CUDA kernel of attention_backward for f32, f32");

    problem = backward_problem(1 << 20);
    problem.max_q_len = 1 << 9;
    BackwardCall queries(problem);
    queries.expect_refused(HEED_UNSUPPORTED, "batch * num_heads * max_q_len is 1048576 * 4 * 512");
    problem.max_q_len = 1;
    problem.max_kv_len = 1 << 10;
    BackwardCall keys(problem);
    keys.expect_refused(HEED_UNSUPPORTED, "batch * num_kv_heads * max_kv_len is 1048576 * 2 * 1024");

    problem = backward_problem();
    problem.max_q_len = 0;
    problem.k_layout = {{int64_t{1} << 31, 128, 64, 1}};
    BackwardCall strides(problem);
    strides.expect_refused(HEED_UNSUPPORTED, "k_layout.stride[0] is 2147483648");

    problem = backward_problem(1);
    problem.max_q_len = problem.max_kv_len = 1 << 15;
    problem.has_bias = true;
    BackwardCall bias(problem);
    bias.args.bias.size = int64_t{1} << 32;
    bias.gradients.dbias = BackwardCall::tensor(25, HEED_F32);
    bias.gradients.dbias.size = int64_t{1} << 32;
    bias.expect_refused(HEED_UNSUPPORTED, "dbias of [1, 4, 32768, 32768] counts more than 2^31-1 elements");

    BackwardCall call(backward_problem());
    call.args.workspace_bytes--;
    call.expect_refused(HEED_WORKSPACE_TOO_SMALL, "workspace_bytes is");
}

}  // namespace
