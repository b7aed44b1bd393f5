// The operations around attention survive the failure of any allocation: nothing is written then.
#include "heed/ops.h"
#include "tests/ops/linear_backward_call.h"
#include "tests/support/call.h"
#include "tests/support/replaced_malloc.h"

namespace heed_test::ops {
namespace {

TEST(OpsAllocation, Case59_LinearBackward) {
    for (const heed_dtype dtype : {HEED_F32, HEED_BF16}) {
        LinearBackward call({33, 64, 31}, dtype), before(call.size, dtype);
        call.args.execution.num_threads = 1;
        expect_survives_every_failure(
            [&] { return heed_linear_backward(&call.args); },
            [&] { return call.dx == before.dx && call.dweight == before.dweight && call.dbias == before.dbias; });
        call.expect_correct();
    }
}

TEST(OpsAllocation, Case59_Linear) {
    constexpr int32_t rows = 9, dim_in = 40, dim_out = 48;
    for (const heed_dtype dtype : {HEED_F32, HEED_F16}) {
        const TypedValues x(dtype, rows * dim_in, 1), weight(dtype, dim_out * dim_in, 2), bias(dtype, dim_out, 3);
        TypedValues y(dtype, rows * dim_out, 4);
        const TypedValues before = y;
        const heed_tensor weight_tensor = weight.tensor(), bias_tensor = bias.tensor();
        heed_linear_weights *packed = nullptr;
        expect_survives_every_failure(
            [&] { return heed_linear_pack(dtype, dim_in, dim_out, &weight_tensor, 0, &bias_tensor, &packed); },
            [&] { return packed == nullptr; });
        const heed_linear_out out = {1, dim_out, y.tensor(), {}, nullptr};
        heed_linear_args args = {};
        args.struct_size = sizeof(args);
        args.batch = 1;
        args.len = rows;
        args.x = x.tensor();
        args.num_outs = 1;
        args.outs = &out;
        args.execution.num_threads = 1;
        const auto run = [&] { return heed_linear(packed, &args); };
        expect_survives_every_failure(run, [&] { return y == before; });
        heed_linear_weights_destroy(packed);
    }
}

TEST(OpsAllocation, Case59_MergeStates) {
    constexpr int32_t q_len = 6, head_dim = 40;
    const std::vector<float> states[] = {std::vector<float>(q_len * head_dim, 1),
                                         std::vector<float>(q_len * head_dim, 3)};
    const std::vector<float> ones(q_len, 1);
    const heed_tensor outs[] = {heed::tensor(states[0].data(), states[0].size()),
                                heed::tensor(states[1].data(), states[1].size())};
    const heed_tensor lses[] = {heed::tensor(ones.data(), ones.size()), heed::tensor(ones.data(), ones.size())};
    std::vector<float> merged(q_len * head_dim, 7);
    const std::vector<float> before = merged;
    heed_merge_args args = {};
    args.struct_size = sizeof(args);
    args.batch = args.num_heads = 1;
    args.q_len = q_len;
    args.head_dim_v = head_dim;
    args.num_states = 2;
    args.outs = outs;
    args.lses = lses;
    args.out = heed::tensor(merged.data(), merged.size());
    args.execution.num_threads = 1;
    expect_survives_every_failure([&] { return heed_merge_states(&args); }, [&] { return merged == before; });
    EXPECT_EQ(merged, std::vector<float>(merged.size(), 2));
}

TEST(OpsAllocation, Case59_Probs) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16}) {
        const Attention a = make_attention({2, 4, 2, 5, 70, 40, 24}, Data::normal, 5, dtype);
        Call call(a, CallOptions());
        ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
        call.args.num_threads = 1;
        std::vector<float> probs(static_cast<size_t>(a.num_rows() * a.kv_len), 7);
        const std::vector<float> before = probs;
        const heed_tensor tensor = heed::tensor(probs.data(), probs.size());
        expect_survives_every_failure(
            [&] { return heed_attention_probs(call.plan(), &call.args, HEED_PROBS_SOFTMAX, &tensor, nullptr); },
            [&] { return probs == before; });
        EXPECT_NE(probs, before);
    }
}

}  // namespace
}  // namespace heed_test::ops
