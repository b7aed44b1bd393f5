// Threads: Heed's pool, the caller's pool, limits, concurrent calls, the floating-point environment.
#include <immintrin.h>
#include <unistd.h>

#include <filesystem>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

#include "runtime/thread_pool.h"
#include "tests/api/fixture.h"

namespace {

using ::testing::HasSubstr;

class Threads : public ApiTest {
protected:
    // Large enough that every thread pays.
    static heed_problem large(int32_t max_threads) {
        heed_problem problem = make_problem(8, 16, 64, 8, 2);
        problem.want_lse = true;
        problem.max_threads = max_threads;
        return problem;
    }
};

TEST_F(Threads, PoolRunsEachItemOnce) {
    for (int32_t num_items : {0, 1, 2, 3, 8, 50}) {
        std::vector<std::atomic<int>> counts(static_cast<size_t>(num_items));
        heed::run_on_shared_pool(
            num_items,
            [](void *context, int32_t index) {
                (*static_cast<std::vector<std::atomic<int>> *>(context))[static_cast<size_t>(index)]++;
            },
            &counts);
        for (const std::atomic<int> &count : counts) EXPECT_EQ(count, 1);
    }
}

TEST_F(Threads, PoolServesManyCallers) {
    std::atomic<int64_t> total{0};
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 8; caller++) {
        callers.emplace_back([&] {
            for (int i = 0; i < 500; i++) {
                heed::run_on_shared_pool(
                    5, [](void *context, int32_t index) { *static_cast<std::atomic<int64_t> *>(context) += index + 1; },
                    &total);
            }
        });
    }
    for (std::thread &caller : callers) caller.join();
    EXPECT_EQ(total, 8 * 500 * 15);
}

// Threads of this process.
std::ptrdiff_t count_tasks() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
}

TEST_F(Threads, Case29_NumThreadsLimitsTheThreadsThatWork) {
    Attempt run(large(8));
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    const std::ptrdiff_t tasks = count_tasks();
    std::mutex mutex;
    std::set<std::thread::id> ids;
    int running = 0, most = 0;
    stub::behaviour.inside = [&](int) {
        {
            std::lock_guard<std::mutex> lock(mutex);
            ids.insert(std::this_thread::get_id());
            most = std::max(most, ++running);
        }
        usleep(500);
        std::lock_guard<std::mutex> lock(mutex);
        running--;
    };
    for (int32_t num_threads : {8, 1, 8, 2, 3}) {
        ids.clear();
        most = 0;
        run.args.num_threads = num_threads;
        ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
        EXPECT_LE(ids.size(), static_cast<size_t>(num_threads));
        EXPECT_LE(most, num_threads);
        EXPECT_EQ(count_tasks(), tasks);  // the others sleep, none is started again
        if (num_threads > 1) {
            EXPECT_GT(most, 1);
        }
    }
    for (int32_t num_threads : {-1, 9, 1 << 30}) {
        run.args.num_threads = num_threads;
        EXPECT_EQ(run.execute(), HEED_INVALID_ARGUMENT);
        EXPECT_THAT(heed_last_error(),
                    HasSubstr("num_threads is " + std::to_string(num_threads) + "; it must be 0 or 1..8"));
    }
}

// A caller's pool that records what it was asked.
struct CallerPool {
    explicit CallerPool(bool drop_items = false) : drop(drop_items) {
        pool = {[](void *context, int32_t num_items, void (*item)(void *, int32_t), void *item_context) {
                    auto &self = *static_cast<CallerPool *>(context);
                    self.asked.push_back(num_items);
                    if (self.drop) return;
                    std::vector<std::thread> threads;
                    for (int32_t i = num_items - 1; i >= 0; i--) threads.emplace_back(item, item_context, i);
                    for (std::thread &thread : threads) thread.join();
                },
                this};
    }

    std::vector<int32_t> asked;
    bool drop;
    heed_parallel_for pool;
};

TEST_F(Threads, CallersPool) {
    Attempt own(large(4)), theirs(large(4));
    ASSERT_EQ(own.execute(), HEED_OK);
    CallerPool pool;
    theirs.args.pool = &pool.pool;
    ASSERT_EQ(theirs.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(pool.asked, ::testing::ElementsAre(4));
    EXPECT_TRUE(same_bits(own.tensors.out, theirs.tensors.out));
    EXPECT_TRUE(same_bits(own.tensors.lse, theirs.tensors.lse));
    theirs.args.num_threads = 1;
    ASSERT_EQ(theirs.execute(), HEED_OK);
    EXPECT_EQ(pool.asked.size(), 1u);  // one thread needs no pool
}

TEST_F(Threads, CallersPoolThatRunsNothingIsAnError) {
    Attempt run(large(4));
    CallerPool pool(true);
    run.args.pool = &pool.pool;
    EXPECT_EQ(run.execute(), HEED_INTERNAL);
    EXPECT_THAT(heed_last_error(), HasSubstr("heed_parallel_for returned before it ran its items"));
    pool.pool.run = nullptr;
    EXPECT_EQ(run.execute(), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("pool->run is NULL"));
}

// Items that do not exist are not run; a call of few tasks asks for few items.
TEST_F(Threads, CallersPoolOfWrongItems) {
    heed_problem problem = make_problem(1, 8, 4096, 2, 2);
    problem.max_threads = 8;
    Attempt own(problem), theirs(problem);
    ASSERT_EQ(own.execute(), HEED_OK) << heed_last_error();
    int32_t asked = 0;
    const heed_parallel_for pool = {
        [](void *context, int32_t num_items, void (*item)(void *, int32_t), void *item_context) {
            *static_cast<int32_t *>(context) = num_items;
            for (int32_t i = -1; i <= num_items; i++) item(item_context, i);
        },
        &asked};
    theirs.args.pool = &pool;
    ASSERT_EQ(theirs.execute(), HEED_OK) << heed_last_error();
    EXPECT_EQ(asked, 2);
    EXPECT_TRUE(same_bits(own.tensors.out, theirs.tensors.out));
}

TEST_F(Threads, ResultsDoNotDependOnThreads) {
    heed_problem problem = make_problem(20, 5, 33, 2, 1);
    problem.max_threads = 8;
    problem.want_lse = true;
    Attempt first(problem);
    ASSERT_EQ(first.execute(), HEED_OK);
    Attempt run(problem);
    for (int repeat = 0; repeat < 40; repeat++) {
        for (int32_t num_threads : {1, 2, 3, 8}) {
            run.args.num_threads = num_threads;
            std::fill(run.tensors.out.begin(), run.tensors.out.end(), canary);
            ASSERT_EQ(run.execute(), HEED_OK);
            ASSERT_TRUE(same_bits(run.tensors.out, first.tensors.out));
            ASSERT_TRUE(same_bits(run.tensors.lse, first.tensors.lse));
        }
    }
}

#ifndef NDEBUG
TEST_F(Threads, Case28_TwoCallsInOneWorkspaceAreNoticed) {
    const heed_problem problem = make_problem(1, 8, 16);
    Attempt first(problem), second(problem);
    ASSERT_EQ(second.execute(), HEED_OK) << heed_last_error();
    const std::vector<float> expected = second.tensors.out;
    first.args.num_threads = 1;
    int nested = 0;
    stub::behaviour.inside = [&](int) {
        if (nested++ > 0) return;
        Attempt own(problem);
        EXPECT_EQ(own.execute(), HEED_OK) << heed_last_error();
        own.tensors.out.assign(own.tensors.out.size(), canary);
        own.args.workspace = first.workspace.data();
        own.expect_refused(HEED_INVALID_ARGUMENT, "is in use by another running call; each needs its own");
    };
    EXPECT_EQ(first.execute(), HEED_OK) << heed_last_error();
    EXPECT_GT(nested, 0);
    EXPECT_TRUE(same_bits(first.tensors.out, expected));
    second.args.workspace = first.workspace.data();
    EXPECT_EQ(second.execute(), HEED_OK) << heed_last_error();
}
#endif

TEST_F(Threads, OnePlanInManyThreads) {
    constexpr int num_threads = 8, num_calls = 1250;
    stub::behaviour.record = false;
    heed_problem problem = make_problem(2, 2, 9, 2, 1, 8, 8);
    problem.want_lse = true;
    const PlanPtr shared = make_plan(problem);
    std::atomic<int> mismatches{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < num_threads; t++) {
        threads.emplace_back([&, t] {
            Attempt expected(problem, static_cast<uint32_t>(t) + 10), run(problem, static_cast<uint32_t>(t) + 10);
            if (expected.execute() != HEED_OK) mismatches++;
            for (int i = 0; i < num_calls; i++) {
                std::fill(run.tensors.out.begin(), run.tensors.out.end(), canary);
                const bool ok = heed_execute(shared.get(), &run.args) == HEED_OK &&
                                same_bits(run.tensors.out, expected.tensors.out) &&
                                same_bits(run.tensors.lse, expected.tensors.lse);
                if (!ok) mismatches++;
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(mismatches, 0);
}

TEST_F(Threads, ConcurrentLargeCallsShareThePool) {
    stub::behaviour.record = false;
    Attempt expected(large(4));
    ASSERT_EQ(expected.execute(), HEED_OK);
    std::atomic<int> mismatches{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; t++) {
        threads.emplace_back([&] {
            Attempt run(large(4));
            for (int i = 0; i < 5; i++) {
                if (run.execute() != HEED_OK || !same_bits(run.tensors.out, expected.tensors.out)) mismatches++;
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(mismatches, 0);
}

TEST_F(Threads, ErrorsAreThreadLocal) {
    EXPECT_EQ(heed_args_init(nullptr), HEED_INVALID_ARGUMENT);
    const std::string mine = heed_last_error();
    std::thread([] { EXPECT_STREQ(heed_last_error(), ""); }).join();
    EXPECT_EQ(mine, heed_last_error());
}

TEST_F(Threads, FloatEnvironmentIsKeptAndDoesNotChangeResults) {
    constexpr unsigned int standard = 0x1f80, flush_to_zero = 0x8000, denormals_are_zero = 0x0040, round_up = 0x4000;
    Attempt run(large(2));
    std::atomic<int> strange{0};
    stub::behaviour.inside = [&](int) {
        if ((_mm_getcsr() & ~0x3fu) != standard) strange++;
    };
    for (unsigned int mode : {standard, standard | flush_to_zero | denormals_are_zero, standard | round_up, 0u}) {
        _mm_setcsr(mode);
        const heed_status status = run.execute();
        const unsigned int after = _mm_getcsr();
        _mm_setcsr(standard);
        ASSERT_EQ(status, HEED_OK);
        EXPECT_EQ(after, mode);
    }
    EXPECT_EQ(strange, 0);
}

}  // namespace
