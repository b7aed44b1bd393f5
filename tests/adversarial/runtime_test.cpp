// Cases 58, 61 and 64 on real kernels: forks, instruction sets, the C++ layer.
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "heed/heed.hpp"
#include "tests/adversarial/adversarial.h"
#include "tests/support/wait_for_child.h"

namespace heed_test {
namespace {

class Forks : public Adversarial {
protected:
    enum ChildResult { child_right = 0, child_refused = 1, child_wrong = 2 };
};

// Children start threads of their own and give the parent's bits.
TEST_P(Forks, Case58_ChildrenOfABusyProcessCompute) {
    const Attention a = kernel().attention({4, 8, 2, kernel().decode() ? 4 : 40, 300, 64, 64}, Data::normal, 58);
    const CallOptions threaded = options().with_threads(4);
    Call busy(a, threaded), call(a, threaded);
    ASSERT_EQ(busy.run(), HEED_OK) << heed_last_error();
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    const std::vector<float> expected = call.out();
    std::atomic<bool> stop{false};
    std::thread computes([&] {
        while (!stop) heed_execute(busy.plan(), &busy.args);
    });
    for (int32_t n = 0; n < 60 && !HasFailure(); n++) {
        call.forget_out();
        const pid_t child = fork();
        if (child == 0) {
            const heed_status status = heed_execute(call.plan(), &call.args);
            exit_child(status != HEED_OK ? child_refused : call.out() == expected ? child_right : child_wrong);
        }
        EXPECT_EQ(wait_for_child(child, std::chrono::seconds(3)), child_right) << "child " << n;
    }
    stop = true;
    computes.join();
}

INSTANTIATE_TEST_SUITE_P(Kernels, Forks,
                         testing::ValuesIn(only(on_cpu(few_kernels_of_64()),
                                                [](const TableKernel &kernel) { return kernel.info.isa != HEED_AMX; })),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Forks);

// Every instruction set that the machine has, asked for by name, gives the same within the bounds; one that it lacks is
// refused before any of its instructions runs.
TEST(Levels, Case61_EachIsRightOrRefused) {
    int32_t ran = 0;
    for (const int32_t q_len : {1, 9}) {
        for (const TableKernel &kernel : all_kernels()) {
            const bool plain = (kernel.info.features & ~static_cast<uint32_t>(HEED_FEATURE_GQA)) == 0;
            const bool decode_of_one = kernel.decode() == (q_len == 1);
            if (kernel.info.head_dim != 64 || !plain || !decode_of_one || kernel.paged()) continue;
            const Attention a = kernel.attention({2, 4, 2, q_len, 300, 64, 64}, Data::normal, 61);
            if (kernel.info.supported) {
                expect_correct(a, kernel.options());
                ran++;
            } else {
                Call call(a, kernel.options());
                EXPECT_EQ(call.prepare(), HEED_UNSUPPORTED) << kernel.name;
                EXPECT_NE(std::strstr(heed_last_error(), kernel.info.unsupported_reason), nullptr) << heed_last_error();
            }
        }
    }
    EXPECT_GT(ran, 0);
}

TEST(CppLayer, Case64_GivesTheBitsAndStatusesOfTheCApi) {
    for (const int32_t q_len : {1, 7}) {
        const Attention a = make_attention({2, 4, 2, q_len, 90, 64, 64}, Data::normal, 64);
        Call call(a, CallOptions());
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        if (call.problem.device == HEED_CUDA) GTEST_SKIP() << "the calls' tensors are the host's";
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        const std::vector<float> out = call.out(), lse = call.lse();
        call.forget_out();
        const heed::Plan plan(call.problem);
        EXPECT_EQ(plan.kernel_name(), call.kernel());
        const heed::Workspace workspace = plan.make_workspace();
        heed_args args = call.args;
        workspace.attach(args);
        plan.execute(args);
        EXPECT_EQ(call.out(), out);
        EXPECT_EQ(call.lse(), lse);

        args.q.data = nullptr;
        const heed_status status = heed_execute(call.plan(), &args);
        const std::string sentence = heed_last_error();
        try {
            plan.execute(args);
            FAIL() << "no exception";
        } catch (const heed::Error &error) {
            EXPECT_EQ(error.status(), status);
            EXPECT_EQ(error.what(), sentence);
        }
    }
}

}  // namespace
}  // namespace heed_test
