// What kernels get: buffers in their dimension order, resolved metadata, splits, dummies.
#include <cmath>
#include <limits>

#include "runtime/kernel.h"
#include "tests/api/fixture.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t int32_min = std::numeric_limits<int32_t>::min();
constexpr int32_t int32_max = std::numeric_limits<int32_t>::max();
constexpr float negative_infinity = -std::numeric_limits<float>::infinity();

class Arguments : public ApiTest {
protected:
    // kv_len, visible_begin, visible_end and position_offset of a one-sequence problem of 4 queries and 10 keys.
    std::vector<int32_t> range(heed_position position, bool causal, int32_t left, int32_t right, int32_t q_offset = 0) {
        heed_problem problem = make_problem(1, 4, 10);
        problem.position = position;
        problem.causal = causal;
        problem.window_left = left;
        problem.window_right = right;
        Attempt run(problem);
        run.args.q_offsets = &q_offset;
        EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
        const stub::Task &task = stub::last_call.task_table.at(0);
        return {task[heed::task_kv_len], task[heed::task_visible_begin], task[heed::task_visible_end],
                task[heed::task_position_offset]};
    }
};

TEST_F(Arguments, VisibleRange) {
    EXPECT_THAT(range(HEED_TOP_LEFT, false, -1, -1), ElementsAre(10, int32_min, 10, 0));
    EXPECT_THAT(range(HEED_TOP_LEFT, true, -1, -1), ElementsAre(10, int32_min, 1, 0));
    EXPECT_THAT(range(HEED_BOTTOM_RIGHT, true, -1, -1), ElementsAre(10, int32_min, 7, 6));
    EXPECT_THAT(range(HEED_BOTTOM_RIGHT, false, 2, 1), ElementsAre(10, 4, 8, 6));
    EXPECT_THAT(range(HEED_BOTTOM_RIGHT, true, 2, 1), ElementsAre(10, 4, 7, 6));
    EXPECT_THAT(range(HEED_EXPLICIT, true, -1, -1, -3), ElementsAre(10, int32_min, -2, -3));
    EXPECT_THAT(range(HEED_EXPLICIT, true, 0, -1, 5), ElementsAre(10, 5, 6, 5));
}

TEST_F(Arguments, VisibleRangeAtTheEdgesOf32Bits) {
    EXPECT_THAT(range(HEED_EXPLICIT, true, -1, -1, int32_max), ElementsAre(10, int32_min, 10, int32_max));
    EXPECT_THAT(range(HEED_EXPLICIT, true, 0, -1, int32_max), ElementsAre(10, 10, 10, int32_max));
    EXPECT_THAT(range(HEED_EXPLICIT, false, int32_max, int32_max, int32_max), ElementsAre(10, 0, 10, int32_max));
    EXPECT_THAT(range(HEED_EXPLICIT, true, int32_max, -1, int32_min), ElementsAre(10, int32_min, -4, int32_min));
    EXPECT_THAT(range(HEED_EXPLICIT, false, int32_max, int32_max, int32_min), ElementsAre(10, int32_min, 0, int32_min));
}

TEST_F(Arguments, BuffersAreReversed) {
    heed_problem problem = make_problem(2, 8, 16);
    problem.want_lse = true;
    problem.k_layout = {{4096, 64, 1024, 1}};  // BHSD
    Attempt run(problem);
    run.args.k.size = 8192;
    run.tensors.k.resize(8192);
    run.args.k.data = run.tensors.k.data();
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    const stub::Call &call = stub::last_call;
    EXPECT_EQ(call.q.data, run.tensors.q.data());
    EXPECT_THAT(call.q.extents, ElementsAre(64, 4, 8, 2));
    EXPECT_THAT(call.q.strides, ElementsAre(1, 64, 256, 2048));
    EXPECT_THAT(call.k.extents, ElementsAre(64, 2, 16, 2));
    EXPECT_THAT(call.k.strides, ElementsAre(1, 1024, 64, 4096));
    EXPECT_THAT(call.v.strides, ElementsAre(1, 64, 128, 2048));
    EXPECT_THAT(call.out.extents, ElementsAre(64, 4, 8, 2));
    EXPECT_THAT(call.lse.extents, ElementsAre(64, 4, 8, 2));
    EXPECT_THAT(call.lse.strides, ElementsAre(0, 8, 1, 32));
}

TEST_F(Arguments, ExtentOneStridesAreCanonical) {
    heed_problem problem = make_problem(1, 8, 16, 1, 1, 1, 1);
    problem.q_layout = {{-5, 3, 99, 77}};
    Attempt run(problem);
    run.tensors.q.resize(64);
    run.args.q = as_tensor(run.tensors.q);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::last_call.q.strides, ElementsAre(1, 0, 3, 0));
}

TEST_F(Arguments, LseFallsIntoTheWorkspace) {
    Attempt run(make_problem(2, 8, 16));
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    const char *lse = static_cast<const char *>(stub::last_call.lse.data);
    EXPECT_GE(lse, run.workspace.data());
    EXPECT_LT(lse, run.workspace.data() + run.workspace.size());
    EXPECT_EQ(reinterpret_cast<uintptr_t>(lse) % 128, 0u);
    EXPECT_THAT(stub::last_call.lse.strides, ElementsAre(0, 8, 1, 32));
}

TEST_F(Arguments, TensorsThatAreNotUsedAreOneElement) {
    heed_problem problem = make_problem(2, 8, 16);
    problem.mask_true_hides = true;  // without has_mask it means nothing
    Attempt run(problem);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    const stub::Call &call = stub::last_call;
    EXPECT_EQ(call.mask_form, heed::no_mask);
    EXPECT_EQ(call.bias_form, heed::no_bias);
    EXPECT_EQ(call.first_mask, 1);
    EXPECT_EQ(call.first_bias, 0);
    EXPECT_EQ(call.first_bias_16, 0);
    EXPECT_EQ(call.first_sink, negative_infinity);
    EXPECT_EQ(call.first_slope, 0);
    EXPECT_EQ(call.first_page, 0);
    for (const stub::Buffer *buffer : {&call.mask, &call.bias, &call.bias_16}) {
        EXPECT_THAT(buffer->extents, ElementsAre(16, 8, 4, 2));
        EXPECT_THAT(buffer->strides, ElementsAre(0, 0, 0, 0));
    }
    for (const stub::Buffer *buffer : {&call.sink, &call.alibi_slopes}) {
        EXPECT_THAT(buffer->extents, ElementsAre(4));
        EXPECT_THAT(buffer->strides, ElementsAre(0));
    }
    EXPECT_THAT(call.page_table.extents, ElementsAre(1, 2));
    EXPECT_THAT(call.page_table.strides, ElementsAre(1, 0));
    EXPECT_NE(call.k_scale.data, nullptr);
    EXPECT_NE(call.v_scale.data, nullptr);
    EXPECT_EQ(call.page_size, 0);
    EXPECT_EQ(call.softcap, 0);
    EXPECT_EQ(call.dropout_threshold, 0u);
    EXPECT_EQ(call.dropout_scale, 1);
}

TEST_F(Arguments, WhatTheProblemLacksIsRefused) {
    Attempt run(make_problem(2, 8, 16));
    std::vector<unsigned char> bytes(1024);
    const auto expect_refused = [&](const char *name) {
        EXPECT_EQ(run.execute(), HEED_INVALID_ARGUMENT);
        EXPECT_EQ(heed_last_error(),
                  name + std::string(" is given; it must be NULL, as the plan's problem declares none"));
    };
#define HEED_REFUSED(name, value)                                                                                      \
    run.args.name = value;                                                                                             \
    expect_refused(#name);                                                                                             \
    run.args.name = {};
    const heed_tensor tensor = {bytes.data(), 1024, HEED_U8};
    HEED_REFUSED(lse, tensor)
    HEED_REFUSED(mask, tensor)
    HEED_REFUSED(bias, tensor)
    HEED_REFUSED(k_scale, tensor)
    HEED_REFUSED(v_scale, tensor)
    const std::vector<float> of_heads(4);
    HEED_REFUSED(sink, of_heads.data())
    HEED_REFUSED(alibi_slopes, of_heads.data())
    HEED_REFUSED(temperature, of_heads.data())
#undef HEED_REFUSED
    run.args.score_buffers[0] = {bytes.data(), 16, HEED_F32};
    EXPECT_EQ(run.execute(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), ::testing::HasSubstr("score_buffers[0] is given; it must be NULL"));
    run.args.score_buffers[0] = {};
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
}

TEST_F(Arguments, BroadcastMasks) {
    heed_problem problem = make_problem(2, 8, 16);
    problem.has_mask = problem.mask_true_hides = true;
    problem.mask_shape[1] = problem.mask_shape[3] = 1;
    Attempt run(problem);
    std::vector<uint8_t> mask(2 * 8, 0);
    run.args.mask = as_tensor(mask);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(stub::last_call.mask.extents, ElementsAre(16, 8, 4, 2));
    EXPECT_THAT(stub::last_call.mask.strides, ElementsAre(0, 1, 0, 8));
    EXPECT_EQ(stub::last_call.mask_form, heed::mask_true_hides);
    run.args.mask.size = 15;
    EXPECT_EQ(run.execute(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("mask.size is 15"));
}

TEST_F(Arguments, ScaleDefault) {
    heed_problem problem = make_problem(1, 8, 16);
    Attempt standard(problem);
    ASSERT_EQ(standard.execute(), HEED_OK);
    EXPECT_EQ(stub::last_call.scale, 0.125f);
    problem.scale = -3;
    Attempt own(problem);
    ASSERT_EQ(own.execute(), HEED_OK);
    EXPECT_EQ(stub::last_call.scale, -3);
}

TEST_F(Arguments, SplitsOfDecodeKernels) {
    heed_problem problem = make_problem(1, 1, 5000);
    Attempt run(problem);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_EQ(stub::last_call.kernel, stub::decode_d64);
    EXPECT_EQ(stub::last_call.split_len, 512);
    EXPECT_EQ(stub::last_call.num_splits, 10);
    EXPECT_EQ(heed_plan_num_splits(run.plan.get()), 10);
    for (int32_t asked : {1, 2, 3, 7, 8, 16, 32, 5000, 5005, int32_max}) {
        problem.num_splits = asked;
        Attempt split(problem);
        ASSERT_EQ(split.execute(), HEED_OK) << heed_last_error();
        const stub::Call &call = stub::last_call;
        EXPECT_LE(call.num_splits, asked);
        EXPECT_EQ(call.split_len % stub::kv_block, 0);
        EXPECT_GE(int64_t{call.num_splits} * call.split_len, 5000);
        EXPECT_LT(int64_t{call.num_splits - 1} * call.split_len, 5000);
    }
}

TEST_F(Arguments, PrefillKernelsDoNotSplit) {
    heed_problem problem = make_problem(1, 8, 5000);
    problem.num_splits = 4;
    Attempt run(problem);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_EQ(stub::last_call.split_len, 0);
    EXPECT_EQ(stub::last_call.num_splits, 1);
    EXPECT_THAT(heed_plan_explain(run.plan.get()), HasSubstr("prefill kernels do not split"));
}

}  // namespace
