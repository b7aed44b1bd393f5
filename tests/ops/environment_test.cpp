// What surrounds a call: the caller's floating-point state, the caller's threads.
#include <xmmintrin.h>

#include "cache.h"

namespace heed_test::ops {
namespace {

constexpr unsigned int default_state = 0x1f80, sticky_flags = 0x3f;

// Calls with the caller's floating-point state set to `state`, which the call must leave as it is.
template <typename Call>
void expect_status(const Call &call, unsigned int state, heed_status expected) {
    const unsigned int before = _mm_getcsr();
    _mm_setcsr(state);
    const heed_status status = call();
    const unsigned int after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(status, expected) << heed_last_error();
    EXPECT_EQ(after & ~sticky_flags, state);
}

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

TEST(Environment, TheCallersFloatingPointStateChangesNothing) {
    heed_execution execution = {};
    execution.num_threads = 2;
    const auto expected = run_all(execution);
    // Flush denormals; round up; round to zero.
    for (const unsigned int change : {0x8040u, 0x4000u, 0x6000u}) {
        EXPECT_EQ(run_all(execution, HEED_OK, default_state | change), expected) << change;
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
