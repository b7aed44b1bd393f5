// Operations on CUDA, on the fake driver: what they launch, and that the first failure ends them with its status.
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fixture.h"

namespace {

using ::testing::HasSubstr;

class CudaOps : public ::testing::Test {
protected:
    CudaOps() {
        fake::set_current(&context_);
        execution_.device = HEED_CUDA;
    }
    ~CudaOps() override {
        fake::set_current(nullptr);
        driver_.fail.clear();
        driver_.on_launch = nullptr;
    }

    static heed_tensor tensor(uint64_t n, heed_dtype dtype = HEED_F16) {
        return {reinterpret_cast<void *>(CudaCall::address(n)), int64_t{1} << 30, dtype};
    }

    // call() makes `launches` launches, and none more once one has failed.
    template <class Call>
    void expect_launches(int launches, const Call &call) {
        int seen = 0;
        driver_.on_launch = [&](const fake::Launch &) { seen++; };
        EXPECT_EQ(call(), HEED_OK) << heed_last_error();
        EXPECT_EQ(seen, launches);
        driver_.on_launch = nullptr;
        driver_.calls.clear();
        driver_.fail = {{"cuLaunchKernel", 700}};
        EXPECT_EQ(call(), HEED_INTERNAL);
        EXPECT_THAT(heed_last_error(), HasSubstr("cuLaunchKernel failed with CUDA_ERROR_OF_TEST (700)"));
        EXPECT_EQ(std::count(driver_.calls.begin(), driver_.calls.end(), "cuLaunchKernel"), 1);
        driver_.fail = {{"cuCtxGetCurrent", 2}};
        EXPECT_EQ(call(), HEED_OUT_OF_MEMORY);
        driver_.fail.clear();
    }

    // A cache of 40 sequences: more than one launch takes.
    heed_kv_view cache(heed_dtype dtype) {
        heed_kv_view view = {};
        view.dtype = dtype;
        view.batch = 40;
        view.num_kv_heads = 2;
        view.head_dim = 16;
        view.head_dim_v = 8;
        view.capacity = 8;
        view.k = tensor(1, dtype);
        view.v = tensor(2, dtype);
        view.k_scale = tensor(3, HEED_F32);
        view.v_scale = tensor(4, HEED_F32);
        view.kv_lens = lens_.data();
        return view;
    }

    fake::Driver &driver_ = fake::driver();
    CUctx_st context_ = {77};
    heed_execution execution_ = {};
    std::vector<int32_t> lens_ = std::vector<int32_t>(40, 3);
};

TEST_F(CudaOps, Rope) {
    heed_rope_args args = {};
    args.struct_size = sizeof(args);
    args.dtype = HEED_F16;
    args.batch = 70;  // a run each, 32 in a launch
    args.len = 3;
    args.num_heads = 2;
    args.head_dim = 16;
    args.x = tensor(1);
    args.out = tensor(2);
    args.x_layout = {{1000, 40, 16, 1}};
    args.tables.rotary_dim = 8;
    args.tables.max_position = 9;
    args.tables.cos = tensor(3, HEED_F32);
    args.tables.sin = tensor(4, HEED_F32);
    args.execution = execution_;
    expect_launches(3, [&] { return heed_rope(&args); });
}

TEST_F(CudaOps, Append) {
    for (const heed_dtype dtype : {HEED_F16, HEED_I8}) {
        heed_kv_append_args args = {};
        args.struct_size = sizeof(args);
        args.dtype = HEED_F16;
        args.new_len = 2;
        args.cache = cache(dtype);
        args.k_new = tensor(5);
        args.v_new = tensor(6);
        args.execution = execution_;
        expect_launches(4, [&] {  // 40 runs of k and of v
            std::fill(lens_.begin(), lens_.end(), 3);
            return heed_kv_append(&args);
        });
        EXPECT_EQ(lens_, std::vector<int32_t>(40, 3));  // the last call failed
        args.new_len = 0;
        driver_.calls.clear();
        EXPECT_EQ(heed_kv_append(&args), HEED_OK) << heed_last_error();
        EXPECT_TRUE(driver_.calls.empty());
    }
}

TEST_F(CudaOps, Copy) {
    const heed_kv_view view = cache(HEED_F16);
    const heed_kv_range range = {0, 1, 0, 3};
    expect_launches(2, [&] { return heed_kv_copy(&view, &range, 1, &execution_); });
}

TEST_F(CudaOps, Probabilities) {
    heed_problem problem = cuda_problem(40, 3, 20);  // a launch takes the metadata of 32 sequences to the device
    problem.has_kv_lens = true;
    CudaCall call(problem);
    std::vector<int32_t> lens(40, 20);
    call.args.kv_lens = lens.data();
    const heed_tensor probs = tensor(30, HEED_F32);
    const auto run = [&] {
        return heed_attention_probs(call.plan.get(), &call.args, HEED_PROBS_SOFTMAX, &probs, nullptr);
    };
    expect_launches(3, run);
    lens[39] = 21;
    driver_.calls.clear();
    EXPECT_EQ(run(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("kv_lens[39] is 21"));
    EXPECT_TRUE(driver_.calls.empty());
}

}  // namespace
