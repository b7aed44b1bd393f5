// heed.h from C and C++, and the thin C++ layer.
#include <heed/heed.hpp>
#include <type_traits>

#include "tests/api/fixture.h"

extern "C" heed_status run_from_c(float *out);

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

static_assert(std::is_standard_layout_v<heed_problem> && std::is_trivial_v<heed_problem>);
static_assert(std::is_standard_layout_v<heed_args> && std::is_trivial_v<heed_args>);
static_assert(sizeof(heed_status) == 4 && sizeof(heed_dtype) == 4 && sizeof(heed_position) == 4);
static_assert(HEED_OK == 0 && HEED_INVALID_ARGUMENT == 1 && HEED_UNSUPPORTED == 2 && HEED_WORKSPACE_TOO_SMALL == 3 &&
              HEED_NO_DEVICE == 4 && HEED_OUT_OF_MEMORY == 5 && HEED_INTERNAL == 6);

TEST(Header, RunsFromC) {
    std::vector<float> out(4, canary);
    ASSERT_EQ(run_from_c(out.data()), HEED_OK) << heed_last_error();
    EXPECT_THAT(out, ElementsAre(1, 2, 3, 4));
}

TEST(Header, RunsFromCpp) {
    heed::Problem problem;
    problem.batch = problem.num_heads = problem.num_kv_heads = problem.max_q_len = problem.max_kv_len = 1;
    problem.head_dim = problem.head_dim_v = 2;
    const heed::Plan plan(problem);
    heed::Workspace workspace = plan.make_workspace();
    const std::vector<float> q(2), k(2), v = {5, 6};
    std::vector<float> out(2);
    heed::Args args;
    args.q = heed::tensor(q.data(), q.size());
    args.k = heed::tensor(k.data(), k.size());
    args.v = heed::tensor(v.data(), v.size());
    args.out = heed::tensor(out.data(), out.size());
    workspace.attach(args);
    plan.execute(args);
    EXPECT_THAT(out, ElementsAre(5, 6));
    EXPECT_EQ(plan.kernel_name(), stub::decode_any);
    EXPECT_EQ(plan.num_splits(), 1);
    EXPECT_THAT(plan.explain(), HasSubstr(plan.kernel_name()));
    EXPECT_EQ(heed::kernels().size(), static_cast<size_t>(heed_kernel_count()));
}

TEST(Header, CppErrorsCarryStatusAndSentence) {
    heed::Problem problem;
    problem.batch = -1;
    try {
        const heed::Plan plan(problem);
        FAIL() << "no exception";
    } catch (const heed::Error &error) {
        EXPECT_EQ(error.status(), HEED_INVALID_ARGUMENT);
        EXPECT_THAT(error.what(), HasSubstr("batch is -1"));
    }
}

}  // namespace
