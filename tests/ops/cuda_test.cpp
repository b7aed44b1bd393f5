// What the operations refuse on CUDA: the same as on the CPU, with the same sentence, before anything is launched.
#include <thread>

#include "tests/ops/cache.h"
#include "tests/ops/device_call.h"

namespace heed_test::ops {
namespace {

class CudaRefusals : public testing::Test {
protected:
    void SetUp() override {
        if (test_device() == HEED_CPU) GTEST_SKIP() << "for CUDA";
    }

    // `call(execution)` fails on both devices alike. Its tensors are host memory: no launch may touch them.
    template <typename Call>
    static void expect_alike(heed_status status, const Call &call) {
        heed_execution execution = {};
        EXPECT_EQ(call(execution), status);
        const std::string sentence = heed_last_error();
        execution.device = HEED_CUDA;
        execution.stream = CudaDevice::get().stream();
        EXPECT_EQ(call(execution), status);
        EXPECT_EQ(heed_last_error(), sentence);
        CudaDevice::get().synchronize();
    }
};

TEST_F(CudaRefusals, Append) {
    for (const bool paged : {false, true}) {
        CacheShape shape;
        shape.paged = paged;
        Cache cache(shape);
        cache.kv_lens = {38, 7};
        Append append(&cache, HEED_F32, 3);
        append.add_rope(16, 9, false);
        const auto before = cache.contents();
        const auto call = [&](const heed_execution &execution) {
            append.args.execution = execution;
            return heed_kv_append(&append.args);
        };
        expect_alike(HEED_INVALID_ARGUMENT, call);  // beyond the capacity
        cache.kv_lens = {5, 7};
        expect_alike(HEED_INVALID_ARGUMENT, call);  // beyond the tables
        append.args.rope = nullptr;
        if (paged) {
            cache.page(0, 0) = cache.page(1, 0);
            cache.kv_lens = {7, 7};
            expect_alike(HEED_INVALID_ARGUMENT, call);  // two tokens for one slot
            cache.page(0, 0) = shape.num_pages;
            expect_alike(HEED_INVALID_ARGUMENT, call);
        }
        EXPECT_EQ(cache.k.bytes(), before[0]);
        EXPECT_EQ(cache.v.bytes(), before[1]);
    }
}

TEST_F(CudaRefusals, Copy) {
    Cache cache(CacheShape{});
    const heed_kv_view view = cache.view();
    for (const heed_kv_range &second : {heed_kv_range{1, 0, 3, 5}, heed_kv_range{0, 2, 0, 1}}) {
        const heed_kv_range ranges[] = {{1, 0, 0, 4}, second};
        expect_alike(HEED_INVALID_ARGUMENT,
                     [&](const heed_execution &execution) { return heed_kv_copy(&view, ranges, 2, &execution); });
    }
}

TEST_F(CudaRefusals, CopiesThatNeedMemoryNameIt) {
    Cache cache(CacheShape{});
    const heed_kv_view view = cache.view();
    const heed_kv_range swap[] = {{0, 1, 0, 8}, {1, 0, 0, 8}};
    heed_execution execution = {};
    execution.device = HEED_CUDA;
    execution.stream = CudaDevice::get().stream();
    EXPECT_FAILS(heed_kv_copy(&view, swap, 2, &execution), HEED_WORKSPACE_TOO_SMALL, "1792");
}

TEST_F(CudaRefusals, MergesOfManyStates) {
    const Tensor x(HEED_F32, {1, 1, 1, 4}), lse(HEED_F32, {1, 1, 1, 1}), out(HEED_F32, {1, 1, 1, 4});
    const std::vector<heed_tensor> outs(65, x.tensor()), lses(65, lse.tensor());
    heed_merge_args args = {};
    args.struct_size = sizeof(args);
    args.batch = args.q_len = args.num_heads = 1;
    args.head_dim_v = 4;
    args.num_states = 65;
    args.outs = outs.data();
    args.lses = lses.data();
    args.out = out.tensor();
    args.execution.device = HEED_CUDA;
    args.execution.stream = CudaDevice::get().stream();
    EXPECT_FAILS(heed_merge_states(&args), HEED_UNSUPPORTED, "num_states is 65");
}

TEST_F(CudaRefusals, AStreamOrAContextMustBeThere) {
    Cache cache(CacheShape{});
    const heed_kv_view view = cache.view();
    const heed_kv_range range = {0, 1, 0, 8};
    heed_status status = HEED_OK;
    std::thread([&] {
        heed_execution execution = {};
        execution.device = HEED_CUDA;
        status = heed_kv_copy(&view, &range, 1, &execution);
    }).join();
    EXPECT_EQ(status, HEED_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace heed_test::ops
