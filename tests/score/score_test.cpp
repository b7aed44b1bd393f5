// Kernels with a user's score function against the oracle, which sees the same as a mask and a bias.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>

#include "runtime/reference/tolerance.h"
#include "tests/score/score_cases.h"
#include "tests/support/call.h"
#include "tests/support/device.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

// Prepares the call on the score function instead of what the oracle sees; `masked`: its mask is the call's own.
heed_status prepare(Call *call, const ScoreCase &c, const char *score_mod, bool masked = false) {
    call->problem.has_mask = masked;
    call->problem.has_bias = false;
    call->problem.softcap = 0;
    call->problem.score_mod = score_mod;
    const heed_status status = call->prepare();
    c.set_buffers(&call->args);
    return status;
}

std::vector<TableKernel> kernels_with_score_mod() {
    std::vector<TableKernel> kernels = supported_kernels();
    kernels.erase(std::remove_if(kernels.begin(), kernels.end(),
                                 [](const TableKernel &kernel) { return kernel.info.score_mod[0] == '\0'; }),
                  kernels.end());
    return kernels;
}

class ScoreMods : public testing::TestWithParam<TableKernel> {};

TEST_P(ScoreMods, EqualMasksAndBiases) {
    const TableKernel &kernel = GetParam();
    Rng rng(3);
    for (int n = 0; n < sized(8, 3); n++) {
        Shape shape = kernel.shape();
        shape.batch = rng.between(1, 2);
        shape.num_kv_heads = rng.between(1, 2);
        shape.num_heads = shape.num_kv_heads * rng.between(1, 3);
        shape.kv_len = rng.between(1, 900);
        shape.q_len = kernel.decode() ? rng.between(1, 4) : rng.between(1, 200);
        ScoreCase c;
        c.a = kernel.attention(shape, Data::normal, rng.bits());
        c.a.position = HEED_BOTTOM_RIGHT;
        const std::string mod = kernel.info.score_mod;
        if (mod != "prefix_lm" && mod != "tree") c.a.causal = rng.chance(0.5);
        if (rng.chance(0.3)) c.a.sink.assign(shape.num_heads, 0.5f);
        c.make(mod.c_str(), &rng);
        Call call(c.a, kernel.options());
        ASSERT_EQ(prepare(&call, c, kernel.info.score_mod), HEED_OK) << heed_last_error();
        ASSERT_EQ(call.kernel(), kernel.name);
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        EXPECT_TRUE(call.canaries_intact());
        const Trust few_keys = {false, false};
        const Verdict verdict =
            verdict_of(c.a, compute_reference_as_held(c.a, false), call.out(), call.lse(), few_keys);
        EXPECT_TRUE(verdict.ok) << "case " << n << ": " << verdict.summary() << " " << verdict.complaint;
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, ScoreMods, testing::ValuesIn(kernels_with_score_mod()),
                         [](const testing::TestParamInfo<TableKernel> &instance) { return instance.param.name; });

TEST_P(ScoreMods, SayHowLargeTheyAre) { EXPECT_GT(GetParam().info.code_bytes, 1000); }

// A key that a mask hides stays hidden, whatever the score function makes of its logit.
TEST_P(ScoreMods, LeaveMasksAlone) {
    const TableKernel &kernel = GetParam();
    if ((kernel.info.features & HEED_FEATURE_MASK) == 0 || std::strcmp(kernel.info.score_mod, "distance") != 0) {
        GTEST_SKIP() << "of kernels with masks and a score function that changes logits";
    }
    Rng rng(4);
    Shape shape = kernel.shape();
    shape.batch = shape.num_heads = shape.num_kv_heads = 1;
    shape.kv_len = 150;
    shape.q_len = kernel.decode() ? 2 : 40;
    ScoreCase c;
    c.a = kernel.attention(shape, Data::normal, rng.bits());
    c.a.position = HEED_BOTTOM_RIGHT;
    c.make("distance", &rng);
    c.see([&](int32_t, int32_t, int32_t i, int64_t, int32_t) { return i != 1 && rng.chance(0.5); });
    Call call(c.a, kernel.options());
    ASSERT_EQ(prepare(&call, c, "distance", true), HEED_OK) << heed_last_error();
    ASSERT_EQ(call.kernel(), kernel.name);
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    const Trust few_keys = {false, false};
    const Verdict verdict = verdict_of(c.a, compute_reference_as_held(c.a, false), call.out(), call.lse(), few_keys);
    EXPECT_TRUE(verdict.ok) << verdict.summary() << " " << verdict.complaint;
}

// What is no number in a key that no row sees, in a block of keys that some see.
TEST_P(ScoreMods, HiddenKeysMayBeNoNumbers) {
    const TableKernel &kernel = GetParam();
    if (std::strcmp(kernel.info.score_mod, "document") != 0) GTEST_SKIP() << "of documents";
    constexpr int32_t len = 300, document = 70, hidden = 3 * document;
    Rng rng(6);
    Shape shape = kernel.shape();
    shape.batch = shape.num_heads = shape.num_kv_heads = 1;
    shape.kv_len = len;
    shape.q_len = kernel.decode() ? 2 : 40;
    ScoreCase c;
    c.a = kernel.attention(shape, Data::normal, rng.bits());
    c.a.position = HEED_BOTTOM_RIGHT;
    for (int32_t j = 0; j < len; j++) c.words[0].push_back(j / document);
    c.words[1] = {len};
    c.see([&](int32_t, int32_t, int32_t, int64_t p, int32_t j) { return p / document == j / document; });
    for (const float poison : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
        for (int32_t j = 0; j < hidden; j++) c.a.k_row(0, j, 0)[j % 8] = c.a.v_row(0, j, 0)[j % 16] = poison;
        Call call(c.a, kernel.options());
        ASSERT_EQ(prepare(&call, c, "document"), HEED_OK) << heed_last_error();
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        const Trust few_keys = {false, false};
        const Verdict verdict =
            verdict_of(c.a, compute_reference_as_held(c.a, false), call.out(), call.lse(), few_keys);
        EXPECT_TRUE(verdict.ok) << poison << ": " << verdict.summary() << " " << verdict.complaint;
    }
}

// The keys of other documents are not read: of 8 documents 7.
TEST(ScoreModBlocks, HiddenOnesAreNotReadOnCuda) {
    if (test_device() != HEED_CUDA) GTEST_SKIP() << "of CUDA kernels";
    int tested = 0;
    for (const TableKernel &kernel : kernels_with_score_mod()) {
        if (std::strcmp(kernel.info.score_mod, "document") != 0 || kernel.info.dtype != HEED_F16) continue;
        if (kernel.shape(64, 64).head_dim != 64) continue;
        ScoreCase c;
        c.a = kernel.attention({1, 1, 1, kernel.decode() ? 1 : 32, 2048, 64, 64}, Data::normal, 5);
        c.a.position = HEED_BOTTOM_RIGHT;
        int64_t sectors[2];
        for (const bool many : {false, true}) {
            c.words[0].assign(2048, 0);
            for (int32_t j = 0; many && j < 2048; j++) c.words[0][static_cast<size_t>(j)] = j / 256;
            c.words[1] = {2048};
            Call call(c.a, kernel.options());
            ASSERT_EQ(prepare(&call, c, "document"), HEED_OK) << heed_last_error();
            sectors[many] = sectors_read([&] { ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error(); });
        }
        if (sectors[0] < 0) GTEST_SKIP() << "of the emulated device, which counts sectors";
        EXPECT_LT(sectors[1], sectors[0] / 4) << kernel.name;
        tested++;
    }
    EXPECT_GT(tested, 0);
}

// On a CPU: the keys and values of the first document are in memory that may not be read, except a block's worth at
// its end.
TEST(ScoreModBlocks, HiddenOnesAreNotRead) {
    constexpr int32_t len = 4096, queries = 96, head_dim = 64;
    constexpr size_t bytes = size_t{len} * head_dim * sizeof(float);
    constexpr size_t unread = len / 2 - 256;  // keys: a block has at most 256, whole pages
    if (test_device() == HEED_CUDA) GTEST_SKIP() << "of CPU kernels";
    int tested = 0;
    for (const TableKernel &kernel : kernels_with_score_mod()) {
        if (std::strcmp(kernel.info.score_mod, "document") != 0 || kernel.info.dtype != HEED_F32 ||
            kernel.any_head_dim())
            continue;
        heed_problem p;
        ASSERT_EQ(heed_problem_init(&p), HEED_OK);
        p.batch = p.num_heads = p.num_kv_heads = 1;
        p.head_dim = p.head_dim_v = head_dim;
        p.max_q_len = kernel.decode() ? 1 : queries;
        p.max_kv_len = len;
        p.position = HEED_BOTTOM_RIGHT;
        p.num_splits = 1;
        p.max_threads = 1;
        p.score_mod = "document";
        const ForcedKernel forced(kernel.name);
        heed_plan *made = nullptr;
        ASSERT_EQ(heed_plan_create(&p, &made), HEED_OK) << heed_last_error();
        const Plan plan(made);
        std::vector<float> q(size_t{queries} * head_dim, 0.0f), out(q.size());
        std::vector<int32_t> documents(len, 1);
        std::fill_n(documents.begin(), len / 2, 0);
        int32_t length = len;
        GuardedBuffer workspace(heed_plan_workspace_bytes(plan.get()), Flush::rear);
        heed_args args;
        ASSERT_EQ(heed_args_init(&args), HEED_OK);
        void *memory[2];
        for (void *&tensor : memory) {
            tensor = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            ASSERT_NE(tensor, MAP_FAILED);
            std::fill_n(static_cast<float *>(tensor), bytes / sizeof(float), 1.0f);
            ASSERT_EQ(mprotect(tensor, unread * head_dim * sizeof(float), PROT_NONE), 0);
        }
        args.q = {q.data(), static_cast<int64_t>(q.size()), HEED_F32};
        args.k = {memory[0], len * head_dim, HEED_F32};
        args.v = {memory[1], len * head_dim, HEED_F32};
        args.out = {out.data(), static_cast<int64_t>(out.size()), HEED_F32};
        args.score_buffers[0] = {documents.data(), len, HEED_I32};
        args.score_buffers[1] = {&length, 1, HEED_I32};
        args.workspace = workspace.data();
        args.workspace_bytes = workspace.bytes();
        EXPECT_EQ(heed_execute(plan.get(), &args), HEED_OK) << kernel.name << ": " << heed_last_error();
        for (int64_t n = 0; n < int64_t{p.max_q_len} * head_dim; n++) ASSERT_EQ(out[n], 1.0f) << kernel.name;
        for (void *tensor : memory) munmap(tensor, bytes);
        tested++;
    }
    EXPECT_GT(tested, 0);
}

// heed_attention_probs would leave the score function out.
TEST(ScoreModProbs, AreRefused) {
    Rng rng(6);
    ScoreCase c;
    c.a = make_attention({1, 2, 1, 5, 40, 64, 64});
    c.make("document", &rng);
    Call call(c.a, {});
    ASSERT_EQ(prepare(&call, c, "document"), HEED_OK) << heed_last_error();
    std::vector<float> probs(2 * 5 * 40, 7.0f);
    const heed_tensor out = {probs.data(), static_cast<int64_t>(probs.size()), HEED_F32};
    EXPECT_EQ(heed_attention_probs(call.plan(), &call.args, HEED_PROBS_SOFTMAX, &out, nullptr), HEED_UNSUPPORTED);
    EXPECT_STREQ(heed_last_error(), "score_mod is \"document\"; heed_attention_probs knows no score functions");
    EXPECT_EQ(probs, std::vector<float>(probs.size(), 7.0f));
}

class ScoreModErrors : public testing::Test {
protected:
    Rng rng{1};
    ScoreCase c;
    void SetUp() override {
        c.a = make_attention({1, 2, 1, 5, 40, 64, 64});
        c.a.position = HEED_BOTTOM_RIGHT;
        c.make("document", &rng);
    }
    void expect_refusal(Call *call, const std::string &sentence) {
        EXPECT_EQ(call->execute(), HEED_INVALID_ARGUMENT);
        EXPECT_EQ(std::string(heed_last_error()), sentence);
        EXPECT_TRUE(call->outputs_untouched());
    }
};

TEST_F(ScoreModErrors, NoSuchFunction) {
    Call call(c.a, {});
    EXPECT_EQ(prepare(&call, c, "no_such"), HEED_UNSUPPORTED);
    EXPECT_NE(std::strstr(heed_last_error(), "score_mod is \"no_such\", the kernel has \"document\""), nullptr);
    EXPECT_NE(std::strstr(heed_last_error(), " SCORE_MOD no_such.cpp) adds one."), nullptr);
}

// A kernel without one is taken when none is asked for, and a kernel with one never.
TEST_F(ScoreModErrors, NoneIsAskedFor) {
    Call call(c.a, {});
    ASSERT_EQ(prepare(&call, c, nullptr), HEED_OK) << heed_last_error();
    EXPECT_EQ(call.kernel().find("score"), std::string::npos);
}

TEST_F(ScoreModErrors, BuffersAreChecked) {
    Call call(c.a, {});
    ASSERT_EQ(prepare(&call, c, "document"), HEED_OK) << heed_last_error();
    const heed_tensor good = call.args.score_buffers[1];
    call.args.score_buffers[1].size = 0;
    expect_refusal(&call, "score_buffers[1].size is 0; it must be 1..2147483647");
    call.args.score_buffers[1] = good;
    call.args.score_buffers[1].dtype = HEED_F32;
    expect_refusal(&call, "score_buffers[1].dtype is f32 (0); it must be i32 (5)");
    call.args.score_buffers[1] = good;
    call.args.score_buffers[0].data = nullptr;
    expect_refusal(&call, "score_buffers[0] is NULL; it must point to 40 elements");
    call.args.score_buffers[0] = {call.args.out.data, 4, HEED_I32};
    expect_refusal(&call, "out overlaps score_buffers[0]; what is written may overlap nothing else");
}

}  // namespace
}  // namespace heed_test
