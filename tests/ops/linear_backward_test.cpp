// heed_linear_backward against sums in double, and what it refuses.
#include <gmock/gmock.h>

#include <functional>

#include "tests/ops/linear_backward_call.h"

namespace heed_test::ops {
namespace {

using testing::HasSubstr;

constexpr LinearSizes shapes[] = {{1, 1, 1}, {3, 17, 5}, {33, 64, 31}, {70, 31, 100}, {129, 48, 64}};

TEST(LinearBackwardTest, MatchesTheSums) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const LinearSizes &shape : shapes) {
            LinearBackward call(shape, dtype);
            ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
            call.expect_correct();
            if (testing::Test::HasFatalFailure())
                FAIL() << shape.rows << " rows, " << shape.dim_in << " -> " << shape.dim_out;
        }
    }
}

TEST(LinearBackwardTest, SumsInFloatsAreNotRoundedToTheInputsType) {
    for (const heed_dtype dtype : {HEED_F16, HEED_BF16}) {
        for (const LinearSizes &shape : shapes) {
            LinearBackward call(shape, dtype, HEED_F32);
            ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
            call.expect_correct();
            if (testing::Test::HasFatalFailure())
                FAIL() << shape.rows << " rows, " << shape.dim_in << " -> " << shape.dim_out;
        }
    }
    TypedValues same(HEED_F16, 0, 0);
    for (int i = 0; i < 4 * 8; i++) same.push(256);
    LinearBackward call({4, 8, 8}, HEED_F16, HEED_F32);
    call.args.x = call.args.dy = same.tensor();  // of which 4 x 256 x 256 is beyond the largest f16
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    for (size_t i = 0; i < 8 * 8; i++) ASSERT_EQ(call.dweight[i], 1 + 262144);
}

TEST(LinearBackwardTest, BitsDoNotDependOnThreadsOrOnWhatElseIsWanted) {
    LinearBackward all({200, 96, 160}, HEED_F32), two(all.size, HEED_F32), input(all.size, HEED_F32),
        weights(all.size, HEED_F32);
    two.args.execution.num_threads = 2;
    all.args.execution.num_threads = 1;
    input.args.dweight = input.args.dbias = input.args.x = {};
    weights.args.dx = weights.args.weight = {};
    for (LinearBackward *call : {&all, &two, &input, &weights}) {
        ASSERT_EQ(call->run(), HEED_OK) << heed_last_error();
    }
    EXPECT_EQ(two.dx.values, all.dx.values);
    EXPECT_EQ(two.dweight.values, all.dweight.values);
    EXPECT_EQ(two.dbias.values, all.dbias.values);
    EXPECT_EQ(input.dx.values, all.dx.values);
    EXPECT_EQ(weights.dweight.values, all.dweight.values);
    EXPECT_EQ(weights.dbias.values, all.dbias.values);
}

TEST(LinearBackwardTest, Refusals) {
    struct Case {
        std::function<void(heed_linear_backward_args &)> change;
        const char *sentence;
        heed_status status = HEED_INVALID_ARGUMENT;
    };
    const Case cases[] = {
        {[](auto &a) { a.struct_size = 9; }, "heed_linear_backward_args.struct_size is 9"},
        {[](auto &a) { a.dtype = HEED_I8; }, "dtype is"},
        {[](auto &a) { a.num_rows = -1; }, "num_rows is -1"},
        {[](auto &a) { a.dim_in = 0; }, "dim_in is 0"},
        {[](auto &a) { a.dim_out = 0; }, "dim_out is 0"},
        {[](auto &a) { a.execution.num_threads = -1; }, "num_threads is -1"},
        {[](auto &a) { a.dy = {}; }, "dy is NULL"},
        {[](auto &a) { a.x = {}; }, "x is NULL"},
        {[](auto &a) { a.weight = {}; }, "weight is NULL"},
        {[](auto &a) { a.dx = a.x; }, "dx overlaps x"},
        {[](auto &a) { a.dx.dtype = HEED_F16; }, "dx.dtype is"},
        {[](auto &a) { a.dweight.size = 7; }, "dweight.size is 7"},
        {[](auto &a) { a.num_rows = INT32_MAX; }, "dx.size is"},
    };
    for (const Case &c : cases) {
        LinearBackward call({33, 64, 31}, HEED_F32), before({33, 64, 31}, HEED_F32);
        call.args.execution.device = test_device();
        const size_t bytes = heed_linear_backward_workspace_bytes(&call.args);
        const heed::Workspace workspace(bytes);
        workspace.attach(call.args.execution);
        c.change(call.args);
        EXPECT_EQ(heed_linear_backward(&call.args), c.status) << c.sentence;
        EXPECT_THAT(heed_last_error(), HasSubstr(c.sentence));
        EXPECT_EQ(call.dx.values, before.dx.values);
        EXPECT_EQ(call.dweight.values, before.dweight.values);
        EXPECT_EQ(call.dbias.values, before.dbias.values);
    }
    EXPECT_EQ(heed_linear_backward(nullptr), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_linear_backward_workspace_bytes(nullptr), 0U);
    LinearBackward none({0, 4, 4}, HEED_F32);
    EXPECT_EQ(heed_linear_backward(&none.args), HEED_OK) << heed_last_error();
}

TEST(LinearBackwardTest, WorkspaceOnCuda) {
    LinearBackward call({33, 64, 31}, HEED_F16);
    EXPECT_EQ(heed_linear_backward_workspace_bytes(&call.args), 0U);
    if (test_device() == HEED_CPU) GTEST_SKIP() << "for CUDA";
    call.args.execution.device = HEED_CUDA;
    // dweight, and 40 rows of dy and of x by columns: each rounded up.
    EXPECT_EQ(heed_linear_backward_workspace_bytes(&call.args), 31U * 64 * 2 + 7680);
    call.args.execution.workspace = &call;
    call.args.execution.workspace_bytes = 11519;
    EXPECT_EQ(heed_linear_backward(&call.args), HEED_WORKSPACE_TOO_SMALL);
    EXPECT_THAT(heed_last_error(), HasSubstr("execution.workspace_bytes is 11519; heed_linear_backward needs 11648"));
}

}  // namespace
}  // namespace heed_test::ops
