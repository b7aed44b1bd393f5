// heed_attention_backward refuses what it does not serve, by a sentence, and writes nothing then.
#include <gmock/gmock.h>

#include "heed/ops.h"
#include "tests/ops/backward_call.h"
#include "tests/ops/backward_cases.h"
#include "tests/support/device.h"

namespace heed_test {
namespace {

using testing::HasSubstr;

const Shape shape = {1, 2, 1, 9, 11, 24, 24};

class BackwardErrors : public testing::Test {
protected:
    Attention a_ = make_attention(shape);

    void expect_error(BackwardCall *call, heed_status status, const char *sentence) {
        EXPECT_EQ(call->backward(), status);
        EXPECT_THAT(heed_last_error(), HasSubstr(sentence));
        EXPECT_TRUE(call->outputs_untouched());
    }

    // For a problem that has no gradients: nothing to allocate, a status with a reason.
    void expect_refused(const CallOptions &options, heed_status status, const char *sentence) {
        BackwardCall call(a_, options, random_dout(a_));
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        EXPECT_EQ(heed_attention_backward_workspace_bytes(call.forward.plan()), 0u);
        expect_error(&call, status, sentence);
    }
};

TEST_F(BackwardErrors, Arguments) {
    BackwardCall call(a_, CallOptions(), random_dout(a_));
    ASSERT_EQ(call.prepare(), HEED_OK);
    EXPECT_EQ(heed_attention_backward_workspace_bytes(nullptr), 0u);
    EXPECT_EQ(heed_attention_backward(nullptr, &call.forward.args, &call.gradients), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("plan is NULL"));
    EXPECT_EQ(heed_attention_backward(call.forward.plan(), nullptr, &call.gradients), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_attention_backward(call.forward.plan(), &call.forward.args, nullptr), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("gradients is NULL"));
    call.gradients.struct_size = 0;
    expect_error(&call, HEED_INVALID_ARGUMENT, "heed_gradients.struct_size is 0");
}

TEST_F(BackwardErrors, Tensors) {
    BackwardCall call(a_, CallOptions(), random_dout(a_));
    ASSERT_EQ(call.prepare(), HEED_OK);
    const heed_gradients good = call.gradients;
    call.gradients.dout.data = nullptr;
    expect_error(&call, HEED_INVALID_ARGUMENT, "dout is NULL");
    call.gradients = good;
    call.gradients.dq.dtype = HEED_F16;
    expect_error(&call, HEED_INVALID_ARGUMENT, "dq.dtype");
    call.gradients = good;
    call.gradients.dk.size--;
    expect_error(&call, HEED_INVALID_ARGUMENT, "dk.size");
    call.gradients = good;
    call.gradients.dv.data = call.gradients.dk.data;
    expect_error(&call, HEED_INVALID_ARGUMENT, "dk overlaps dv");
    call.gradients = good;
    call.gradients.dq.data = call.forward.args.q.data;
    expect_error(&call, HEED_INVALID_ARGUMENT, "dq overlaps q");
    call.gradients = good;
    call.gradients.dq.data = call.forward.args.out.data;
    expect_error(&call, HEED_INVALID_ARGUMENT, "dq overlaps out");
    call.gradients = good;
    call.gradients.dq.data = call.forward.args.lse.data;
    expect_error(&call, HEED_INVALID_ARGUMENT, "overlaps");
    call.gradients = good;
    call.gradients.dv.data = const_cast<void *>(call.gradients.dout.data);
    expect_error(&call, HEED_INVALID_ARGUMENT, "overlaps");
    call.gradients = good;
    call.gradients.dbias = good.dq;
    expect_error(&call, HEED_INVALID_ARGUMENT, "has_bias is false");
    call.gradients = good;
    call.gradients.dsink = good.dq;
    expect_error(&call, HEED_INVALID_ARGUMENT, "has_sink is false");
}

TEST_F(BackwardErrors, Workspace) {
    BackwardCall call(a_, CallOptions(), random_dout(a_));
    ASSERT_EQ(call.prepare(), HEED_OK);
    heed_args args = call.forward.args;  // the workspace of the forward call, with one byte too few
    args.workspace_bytes = heed_attention_backward_workspace_bytes(call.forward.plan()) - 1;
    EXPECT_EQ(heed_attention_backward(call.forward.plan(), &args, &call.gradients), HEED_WORKSPACE_TOO_SMALL);
    EXPECT_TRUE(call.outputs_untouched());
}

// One head of keys is cut into ranges, for threads: each adds to the same sums of dq.
TEST_F(BackwardErrors, WorkspaceHoldsDqOnce) {
    if (test_device() == HEED_CUDA) GTEST_SKIP() << "of CPUs";
    heed_problem p;
    ASSERT_EQ(heed_problem_init(&p), HEED_OK);
    p.batch = p.num_kv_heads = p.max_threads = 1;
    p.num_heads = 8;
    p.head_dim = p.head_dim_v = 64;
    p.max_q_len = p.max_kv_len = 1920;  // whole blocks
    p.want_lse = true;
    heed_plan *made = nullptr;
    ASSERT_EQ(heed_plan_create(&p, &made), HEED_OK) << heed_last_error();
    const Plan plan(made);
    const size_t row = 64 * sizeof(float), queries = size_t{1920} * 8 * row, keys = size_t{1920} * row;
    const size_t of_a_thread = size_t{512} << 10;
    EXPECT_LE(heed_attention_backward_workspace_bytes(plan.get()), 3 * queries + 2 * keys + queries / 16 + of_a_thread);
}

TEST_F(BackwardErrors, Metadata) {
    a_.kv_lens = {7};
    BackwardCall call(a_, CallOptions(), random_dout(a_));
    ASSERT_EQ(call.prepare(), HEED_OK);
    const int32_t wrong = 12;
    call.forward.args.kv_lens = &wrong;
    expect_error(&call, HEED_INVALID_ARGUMENT, "kv_lens[0] is 12");
}

TEST_F(BackwardErrors, Int8Keys) {
    a_ = make_attention(shape, Data::normal, 1, HEED_F16, true);
    expect_refused(CallOptions(), HEED_UNSUPPORTED, "kv_dtype is i8");
}

TEST_F(BackwardErrors, PagedKeys) {
    expect_refused(CallOptions().with_pages(4), HEED_UNSUPPORTED, "kv_storage is paged");
}

TEST_F(BackwardErrors, NoLse) {
    CallOptions options;
    options.want_lse = false;
    expect_refused(options, HEED_INVALID_ARGUMENT, "want_lse is false");
}

// Keys of one head for all sequences: their gradients would fall on one another.
TEST_F(BackwardErrors, BroadcastKeys) {
    a_ = make_attention({2, 2, 1, 9, 11, 24, 24});
    BackwardCall call(a_, CallOptions(), random_dout(a_));
    call.forward.problem.k_layout = {{0, 24, 24, 1}};
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    expect_error(&call, HEED_INVALID_ARGUMENT, "dk_layout.stride[0] is 0");
}

}  // namespace
}  // namespace heed_test
