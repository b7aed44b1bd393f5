// A process forked while other threads compute: the child's calls answer, rightly and soon.
#include <unistd.h>

#include <chrono>
#include <thread>

#include "tests/api/fixture.h"
#include "tests/support/wait_for_child.h"

namespace {

enum ChildResult { child_ok = 0, child_failed = 1, child_wrong = 2 };

TEST(Fork, Case58_ChildrenOfABusyProcessCompute) {
    stub::behaviour.record = false;
    heed_problem problem = make_problem(2, 16, 64, 4, 2);  // two threads' worth
    problem.max_threads = 4;
    Attempt expected(problem);
    ASSERT_EQ(expected.execute(), HEED_OK);

    Attempt other(problem), run(problem);  // allocated before: sanitizers' allocators do not survive a fork meanwhile
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) other.execute();
    });
    for (int i = 0; i < 60 && !HasFailure(); i++) {
        const pid_t child = fork();
        EXPECT_GE(child, 0);
        if (child == 0) {
            const heed_status status = run.execute();
            heed_test::exit_child(status != HEED_OK                                  ? child_failed
                                  : same_bits(run.tensors.out, expected.tensors.out) ? child_ok
                                                                                     : child_wrong);
        }
        EXPECT_EQ(heed_test::wait_for_child(child, std::chrono::seconds(3)), child_ok) << "child " << i;
    }
    stop = true;
    busy.join();
}

// The parent's pool, which a child must not take for its own, has threads that the child lacks.
TEST(Fork, ChildrenHaveWorkersOfTheirOwn) {
    stub::behaviour.record = false;
    heed_problem problem = make_problem(2, 16, 64, 4, 2);
    problem.max_threads = 4;
    Attempt run(problem);
    ASSERT_EQ(run.execute(), HEED_OK);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        std::atomic<int> entered{0};
        stub::behaviour.inside = [&](int) {
            entered++;
            const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(1);
            while (entered < 2 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
            if (entered < 2) heed_test::exit_child(child_failed);
        };
        heed_test::exit_child(run.execute() == HEED_OK ? child_ok : child_wrong);
    }
    EXPECT_EQ(heed_test::wait_for_child(child, std::chrono::seconds(3)), child_ok);
}

}  // namespace
