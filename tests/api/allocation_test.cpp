// Memory: a plan survives the failure of any of its allocations; execute makes none.
#include "tests/api/fixture.h"
#include "tests/support/replaced_malloc.h"

namespace {

using heed_test::all_allocations;
using heed_test::expect_survives_every_failure;
using heed_test::live_blocks;

class Allocation : public ApiTest {};

TEST_F(Allocation, Case59_PlanSurvivesEveryFailure) {
    const heed_problem problem = make_problem(2, 8, 16);
    heed_plan *plan = nullptr;
    const int64_t live = live_blocks;
    expect_survives_every_failure([&] { return heed_plan_create(&problem, &plan); },
                                  [&] { return plan == nullptr && live_blocks == live; });
    heed_plan_destroy(plan);
    EXPECT_TRUE(make_plan(problem));
}

// A decoder whose keys move with each token makes a plan for each: nothing but the plan itself is allocated.
TEST_F(Allocation, PlanIsOneAllocation) {
    make_plan(make_problem(2, 8, 16));  // what the first plan of a process sets up
    const int64_t before = all_allocations;
    const PlanPtr plan = make_plan(make_problem(2, 8, 17));
    EXPECT_EQ(all_allocations, before + 1);
}

TEST_F(Allocation, ExplainSurvivesEveryFailure) {
    const PlanPtr plan = make_plan(make_problem(2, 8, 16));
    expect_survives_every_failure(
        [&] { return heed_plan_explain(plan.get())[0] == '\0' ? HEED_OUT_OF_MEMORY : HEED_OK; }, [] { return true; });
    EXPECT_STRNE(heed_plan_explain(plan.get()), "");
}

TEST_F(Allocation, ExecuteMakesNone) {
    stub::behaviour.record = false;
    heed_problem problem = make_problem(8, 16, 256, 8, 2);
    problem.has_kv_lens = true;
    problem.max_threads = 4;
    Attempt run(problem);
    const std::vector<int32_t> kv_lens(8, 100);
    run.args.kv_lens = kv_lens.data();
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();  // starts the pool's threads
    const int64_t before = all_allocations;
    for (int i = 0; i < 10; i++) ASSERT_EQ(run.execute(), HEED_OK);
    run.args.kv_lens = nullptr;
    ASSERT_EQ(run.execute(), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(all_allocations, before);
}

TEST_F(Allocation, FirstExecuteOnOneThreadMakesNone) {
    stub::behaviour.record = false;
    Attempt run(make_problem(8, 16, 256, 8, 2));
    run.args.num_threads = 1;
    const int64_t before = all_allocations;
    ASSERT_EQ(run.execute(), HEED_OK);
    EXPECT_EQ(all_allocations, before);
}

// Appends and copies to a cache of the tokens' own type, which no generated kernel serves.
TEST_F(Allocation, Case59_CacheOperationsSurviveEveryFailure) {
    std::vector<float> k(4 * 8 * 16, canary), v = k, tokens(4 * 2 * 16, 1.0f);
    const std::vector<float> before = k;
    std::vector<int32_t> kv_lens(4, 3);
    heed_kv_append_args args = {};
    args.struct_size = sizeof(args);
    args.new_len = 2;
    args.k_new = args.v_new = {tokens.data(), static_cast<int64_t>(tokens.size()), HEED_F32};
    args.cache.batch = 4;
    args.cache.num_kv_heads = 1;
    args.cache.head_dim = args.cache.head_dim_v = 16;
    args.cache.capacity = 8;
    args.cache.k = {k.data(), static_cast<int64_t>(k.size()), HEED_F32};
    args.cache.v = {v.data(), static_cast<int64_t>(v.size()), HEED_F32};
    args.cache.kv_lens = kv_lens.data();
    args.execution.num_threads = 1;
    expect_survives_every_failure([&] { return heed_kv_append(&args); },
                                  [&] { return k == before && v == before && kv_lens == std::vector<int32_t>(4, 3); });
    const std::vector<float> appended = k;
    EXPECT_NE(appended, before);
    const heed_kv_range swap[] = {{0, 1, 0, 8}, {1, 0, 0, 4}};
    expect_survives_every_failure([&] { return heed_kv_copy(&args.cache, swap, 2, &args.execution); },
                                  [&] { return k == appended; });
}

}  // namespace
