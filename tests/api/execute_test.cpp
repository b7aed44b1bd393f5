// heed_execute checks pointers, capacities, overlaps and metadata before anything is written, and hands kernels what
// the kernel contract says.
#include <cmath>
#include <limits>

#include "runtime/kernel.h"
#include "tests/api/fixture.h"

namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t int32_min = std::numeric_limits<int32_t>::min();
constexpr int32_t int32_max = std::numeric_limits<int32_t>::max();
const float negative_infinity = -std::numeric_limits<float>::infinity();

class Execute : public ApiTest {
protected:
    static heed_problem with_lse() {
        heed_problem problem = make_problem(2, 8, 16);
        problem.want_lse = true;
        return problem;
    }
};

TEST_F(Execute, NullAndStructSize) {
    Attempt run(with_lse());
    EXPECT_EQ(heed_execute(nullptr, &run.args), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_execute(run.plan.get(), nullptr), HEED_INVALID_ARGUMENT);
    for (uint32_t size : {0u, 8u, uint32_t{sizeof(heed_args)} - 8, uint32_t{sizeof(heed_args)} + 8}) {
        run.args.struct_size = size;
        run.expect_refused(HEED_INVALID_ARGUMENT, "heed_args.struct_size is " + std::to_string(size));
    }
}

TEST_F(Execute, Case37_EachTensorNullInTurn) {
    heed_problem problem = with_lse();
    problem.has_mask = problem.has_bias = problem.has_kv_lens = true;
    problem.position = HEED_EXPLICIT;
    Attempt run(problem);
    std::vector<uint8_t> mask(2 * 4 * 8 * 16, 1);
    std::vector<float> bias(mask.size(), 0.0f);
    const int32_t kv_lens[] = {16, 3}, q_offsets[] = {0, -2};
    run.args.mask = as_tensor(mask);
    run.args.bias = as_tensor(bias);
    run.args.kv_lens = kv_lens;
    run.args.q_offsets = q_offsets;
    const std::pair<const char *, heed_tensor heed_args::*> tensors[] = {
        {"q", &heed_args::q},     {"k", &heed_args::k},       {"v", &heed_args::v},      {"out", &heed_args::out},
        {"lse", &heed_args::lse}, {"mask", &heed_args::mask}, {"bias", &heed_args::bias}};
    for (const auto &[name, member] : tensors) {
        const heed_tensor saved = run.args.*member;
        (run.args.*member).data = nullptr;
        run.expect_refused(HEED_INVALID_ARGUMENT, std::string(name) + " is NULL");
        run.args.*member = saved;
    }
    run.args.kv_lens = nullptr;
    run.expect_refused(HEED_INVALID_ARGUMENT, "kv_lens is NULL");
    run.args.kv_lens = kv_lens;
    run.args.q_offsets = nullptr;
    run.expect_refused(HEED_INVALID_ARGUMENT, "q_offsets is NULL");
    run.args.q_offsets = q_offsets;
    run.args.workspace = nullptr;
    run.expect_refused(HEED_INVALID_ARGUMENT, "workspace is NULL");
    run.args.workspace = run.workspace.data();
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
}

TEST_F(Execute, Case39_TypesCapacitiesAlignment) {
    Attempt run(with_lse());
    heed_tensor heed_args::*const tensors[] = {&heed_args::q, &heed_args::k, &heed_args::v, &heed_args::out,
                                               &heed_args::lse};
    for (heed_tensor heed_args::*member : tensors) {
        const heed_tensor saved = run.args.*member;
        for (int32_t dtype : {-1, 1, 4, 255}) {
            (run.args.*member).dtype = static_cast<heed_dtype>(dtype);
            run.expect_refused(HEED_INVALID_ARGUMENT, "(" + std::to_string(dtype) + "); it must be f32 (0)");
        }
        run.args.*member = saved;
        for (int64_t size : {int64_t{0}, saved.size - 1, std::numeric_limits<int64_t>::min()}) {
            (run.args.*member).size = size;
            run.expect_refused(HEED_INVALID_ARGUMENT, ".size is " + std::to_string(size));
        }
        run.args.*member = saved;
        for (int bytes : {1, 2, 3}) {
            (run.args.*member).data = static_cast<char *>(saved.data) + bytes;
            run.expect_refused(HEED_INVALID_ARGUMENT, "aligned to 4 bytes");
        }
        run.args.*member = saved;
    }
}

TEST_F(Execute, AnyElementAlignment) {
    Attempt plain(with_lse());
    ASSERT_EQ(plain.execute(), HEED_OK);
    for (size_t shift = 1; shift < 16; shift++) {
        Attempt run(with_lse());
        std::vector<float> shifted(run.tensors.q.size() + shift);
        std::copy(run.tensors.q.begin(), run.tensors.q.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
        run.args.q.data = shifted.data() + shift;
        ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
        EXPECT_TRUE(same_bits(run.tensors.out, plain.tensors.out));
    }
}

TEST_F(Execute, Workspace) {
    Attempt run(with_lse());
    run.args.workspace_bytes--;
    run.expect_refused(HEED_WORKSPACE_TOO_SMALL, "workspace_bytes is ");
    run.args.workspace_bytes = 0;
    run.expect_refused(HEED_WORKSPACE_TOO_SMALL, "workspace_bytes is 0");
    run.args.workspace_bytes = run.workspace.size();
    run.args.workspace = run.workspace.data() + 64;
    run.expect_refused(HEED_INVALID_ARGUMENT, "aligned to 128 bytes");
}

TEST_F(Execute, Case38_OutputsOverlapNothing) {
    Attempt run(with_lse());
    const heed_tensor out = run.args.out;
    const std::pair<const char *, const heed_tensor *> inputs[] = {
        {"q", &run.args.q}, {"k", &run.args.k}, {"v", &run.args.v}};
    for (const auto &[name, input] : inputs) {
        std::vector<float> before(static_cast<const float *>(input->data),
                                  static_cast<const float *>(input->data) + 512);
        for (int64_t shift : {0, 1, 511}) {
            run.args.out.data = static_cast<float *>(input->data) + shift;
            run.expect_refused(HEED_INVALID_ARGUMENT, "out overlaps " + std::string(name));
        }
        EXPECT_EQ(std::memcmp(before.data(), input->data, 512 * sizeof(float)), 0);
    }
    run.args.out = out;
    run.args.lse.data = static_cast<float *>(out.data) + 17;
    run.expect_refused(HEED_INVALID_ARGUMENT, "out overlaps lse");
    run.args.lse = as_tensor(run.tensors.lse);
    run.args.out.data = run.workspace.data();
    run.args.out.size = 1 << 20;
    run.expect_refused(HEED_INVALID_ARGUMENT, "out overlaps workspace");
}

TEST_F(Execute, Case38_OutputsOverlapNoMaskNorBias) {
    heed_problem problem = with_lse();
    problem.has_mask = problem.has_bias = true;
    Attempt run(problem);
    std::vector<uint8_t> mask(2 * 4 * 8 * 16, 1);
    std::vector<float> bias(mask.size(), 0.0f);
    run.args.mask = as_tensor(mask);
    run.args.bias = as_tensor(bias);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    std::fill(run.tensors.out.begin(), run.tensors.out.end(), canary);
    std::fill(run.tensors.lse.begin(), run.tensors.lse.end(), canary);
    run.args.mask.data = reinterpret_cast<uint8_t *>(run.tensors.out.data()) + 3;
    run.expect_refused(HEED_INVALID_ARGUMENT, "out overlaps mask");
    run.args.mask = as_tensor(mask);
    run.args.bias.data = run.tensors.lse.data();
    run.expect_refused(HEED_INVALID_ARGUMENT, "lse overlaps bias");
}

TEST_F(Execute, MetadataMayNotBeWritten) {
    heed_problem problem = with_lse();
    problem.has_kv_lens = true;
    Attempt run(problem);
    run.args.kv_lens = reinterpret_cast<const int32_t *>(run.tensors.out.data() + 5);
    run.expect_refused(HEED_INVALID_ARGUMENT, "out overlaps kv_lens");
    run.args.kv_lens = reinterpret_cast<const int32_t *>(run.workspace.data());
    run.expect_refused(HEED_INVALID_ARGUMENT, "workspace overlaps kv_lens");
}

TEST_F(Execute, InputsMayShareMemory) {
    Attempt run(with_lse());
    run.args.v = run.args.k;
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
}

TEST_F(Execute, KvLensValues) {
    heed_problem problem = with_lse();
    problem.has_kv_lens = true;
    Attempt run(problem);
    for (int32_t value : {-1, 17, int32_min, int32_max}) {
        for (int32_t at : {0, 1}) {
            int32_t kv_lens[] = {16, 16};
            kv_lens[at] = value;
            run.args.kv_lens = kv_lens;
            run.expect_refused(HEED_INVALID_ARGUMENT,
                               "kv_lens[" + std::to_string(at) + "] is " + std::to_string(value));
        }
    }
    const int32_t kv_lens[] = {0, 16};
    run.args.kv_lens = kv_lens;
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    const size_t half = run.tensors.out.size() / 2;
    EXPECT_THAT(
        std::vector<float>(run.tensors.out.begin(), run.tensors.out.begin() + static_cast<std::ptrdiff_t>(half)),
        Each(0.0f));
}

TEST_F(Execute, NoKeys) {
    for (const bool causal : {false, true}) {
        heed_problem problem = make_problem(2, 3, 0);
        problem.want_lse = true;
        problem.causal = causal;
        problem.position = HEED_BOTTOM_RIGHT;
        problem.has_mask = problem.has_bias = true;
        Attempt run(problem);
        EXPECT_EQ(heed_plan_workspace_bytes(run.plan.get()), 0u);
        run.args.workspace = nullptr;
        run.args.q.data = run.tensors.q.data();
        const int64_t calls = stub::num_calls;
        ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
        EXPECT_EQ(stub::num_calls, calls);
        for (float x : run.tensors.out) EXPECT_TRUE(x == 0 && !std::signbit(x));
        EXPECT_THAT(run.tensors.lse, Each(negative_infinity));
    }
}

TEST_F(Execute, NoKeysWritesRowsOnly) {
    heed_problem problem = make_problem(1, 2, 0, 1, 1, 3, 3);
    problem.out_layout = {{0, 5, 0, 1}};
    Attempt run(problem);
    std::vector<float> out(8, canary);
    run.args.out = as_tensor(out);
    ASSERT_EQ(run.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(out, ElementsAre(0, 0, 0, canary, canary, 0, 0, 0));
}

TEST_F(Execute, EmptyProblemsTouchNothing) {
    for (const auto &[batch, q_len] : {std::pair(0, 3), std::pair(2, 0), std::pair(0, 0)}) {
        for (const bool causal : {false, true}) {
            heed_problem problem = make_problem(batch, q_len, 5);
            problem.want_lse = problem.has_kv_lens = true;
            problem.causal = causal;
            PlanPtr plan = make_plan(problem);
            EXPECT_EQ(heed_plan_workspace_bytes(plan.get()), 0u);
            heed_args args;
            heed_args_init(&args);
            const int64_t calls = stub::num_calls;
            EXPECT_EQ(heed_execute(plan.get(), &args), HEED_OK) << heed_last_error();
            EXPECT_EQ(stub::num_calls, calls);
        }
    }
}

}  // namespace
