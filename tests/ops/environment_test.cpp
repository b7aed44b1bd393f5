// What surrounds a call: the caller's floating-point state, the caller's threads.
#include "tests/ops/cache.h"
#include "tests/ops/linear_backward_call.h"
#include "tests/support/float_state.h"

namespace heed_test::ops {
namespace {

// All results of one round of operations.
std::vector<std::vector<unsigned char>> run_all(const heed_execution &execution, heed_status expected = HEED_OK,
                                                unsigned int state = default_state) {
    CacheShape shape;
    shape.dtype = HEED_I8;
    shape.capacity = 600;
    shape.num_kv_heads = 8;
    Cache cache(shape);
    Append append(&cache, HEED_F16, 500);
    append.add_rope(32, 600, true);
    append.args.execution = execution;
    expect_status([&] { return heed_kv_append(&append.args); }, state, expected);

    Tensor outs[2] = {Tensor(HEED_F32, {2, 300, 8, 64}), Tensor(HEED_F32, {2, 300, 8, 64})};
    Tensor lses[2] = {Tensor(HEED_F32, {2, 8, 300, 1}), Tensor(HEED_F32, {2, 8, 300, 1})};
    Tensor out(HEED_F32, {2, 300, 8, 64});
    for (uint64_t n = 0; n < 2; n++) {
        outs[n].fill_normal(n);
        lses[n].fill_normal(n + 5);
        outs[n].set(0, 0, 0, 0, 1e-40f);
    }
    const heed_tensor out_tensors[] = {outs[0].tensor(), outs[1].tensor()};
    const heed_tensor lse_tensors[] = {lses[0].tensor(), lses[1].tensor()};
    heed_merge_args merge = {};
    merge.struct_size = sizeof(merge);
    merge.batch = 2;
    merge.q_len = 300;
    merge.num_heads = 8;
    merge.head_dim_v = 64;
    merge.num_states = 2;
    merge.outs = out_tensors;
    merge.lses = lse_tensors;
    merge.out = out.tensor();
    merge.execution = execution;
    expect_status([&] { return heed_merge_states(&merge); }, state, expected);

    auto results = cache.contents();
    results.push_back(out.bytes());
    return results;
}

std::vector<float> run_linear(unsigned int state) {
    LinearBackward call({9, 17, 5}, HEED_BF16, HEED_F32);
    expect_status([&] { return heed_linear_backward(&call.args); }, state, HEED_OK);
    return call.dweight.values;
}

// With the default scale, 1 / sqrt(24), and dropout's 1 / (1 - p), neither of which is a float; out, lse and dq.
std::vector<std::vector<unsigned char>> run_attention(unsigned int state) {
    constexpr int32_t q_len = 40, kv_len = 300, head_dim = 24;
    heed_problem p;
    EXPECT_EQ(heed_problem_init(&p), HEED_OK);
    p.batch = p.num_heads = p.num_kv_heads = 1;
    p.max_q_len = q_len;
    p.max_kv_len = kv_len;
    p.head_dim = p.head_dim_v = head_dim;
    p.dropout_p = 0.3f;
    p.want_lse = true;
    heed_plan *plan = nullptr;
    expect_status([&] { return heed_plan_create(&p, &plan); }, state, HEED_OK);
    std::unique_ptr<heed_plan, void (*)(heed_plan *)> owner(plan, heed_plan_destroy);
    const Extents of_queries = {1, q_len, 1, head_dim}, of_keys = {1, kv_len, 1, head_dim};
    Tensor q(HEED_F32, of_queries), out(HEED_F32, of_queries), dout(HEED_F32, of_queries), dq(HEED_F32, of_queries);
    Tensor k(HEED_F32, of_keys), v(HEED_F32, of_keys), lse(HEED_F32, {1, 1, q_len, 1});
    uint64_t seed = 0;
    for (Tensor *tensor : {&q, &k, &v, &dout}) tensor->fill_normal(seed++);
    heed_args args;
    EXPECT_EQ(heed_args_init(&args), HEED_OK);
    args.q = q.tensor();
    args.k = k.tensor();
    args.v = v.tensor();
    args.out = out.tensor();
    args.lse = lse.tensor();
    const auto attach = [&](const heed::Workspace &workspace) { workspace.attach(args); };
    const heed::Workspace workspace(heed_plan_workspace_bytes(plan));
    attach(workspace);
    expect_status([&] { return heed_execute(plan, &args); }, state, HEED_OK);
    heed_gradients gradients = {};
    gradients.struct_size = sizeof(gradients);
    gradients.dout = dout.tensor();
    gradients.dq = dq.tensor();
    const heed::Workspace of_backward(heed_attention_backward_workspace_bytes(plan));
    attach(of_backward);
    expect_status([&] { return heed_attention_backward(plan, &args, &gradients); }, state, HEED_OK);
    return {out.bytes(), lse.bytes(), dq.bytes()};
}

TEST(Environment, TheCallersFloatingPointStateChangesNothing) {
    heed_execution execution = {};
    execution.num_threads = 2;
    const auto expected = run_all(execution);
    const auto expected_attention = run_attention(default_state);
    const auto expected_linear = run_linear(default_state);
    // Flush denormals; round up; round to zero; exceptions unmasked.
    for (const unsigned int state : {0x9fc0u, 0x5f80u, 0x7f80u, 0u}) {
        EXPECT_EQ(run_all(execution, HEED_OK, state), expected) << state;
        EXPECT_EQ(run_attention(state), expected_attention) << state;
        EXPECT_EQ(run_linear(state), expected_linear) << state;
    }
}

TEST(Environment, TheCallersPool) {
    heed_execution execution = {};
    execution.num_threads = 3;
    const auto expected = run_all(execution);
    heed_parallel_for pool = {};
    pool.run = [](void *context, int32_t num_items, void (*item)(void *, int32_t), void *item_context) {
        *static_cast<int32_t *>(context) += num_items;
        for (int32_t i = num_items - 1; i >= 0; i--) item(item_context, i);
    };
    int32_t items = 0;
    pool.context = &items;
    execution.pool = &pool;
    EXPECT_EQ(run_all(execution), expected);
    EXPECT_EQ(items, 6);
    pool.run = [](void *, int32_t, void (*)(void *, int32_t), void *) {};
    run_all(execution, HEED_INTERNAL);
    EXPECT_NE(std::string(heed_last_error()).find("heed_parallel_for"), std::string::npos) << heed_last_error();
    pool.run = nullptr;
    run_all(execution, HEED_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace heed_test::ops
