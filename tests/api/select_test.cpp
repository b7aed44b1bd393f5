// Which kernel a problem gets, and what the library tells about it.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "runtime/heuristics.h"
#include "runtime/kernel_registry.h"
#include "tests/api/fixture.h"

namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::StrEq;

class Select : public ApiTest {};

std::string kernel_of(const heed_problem &problem) { return heed_plan_kernel_name(make_plan(problem).get()); }

TEST_F(Select, PhaseDimsAndFeatures) {
    heed_problem problem = make_problem(1, 5, 64);
    EXPECT_EQ(kernel_of(problem), stub::prefill_d64);
    problem.head_dim_v = 63;
    EXPECT_EQ(kernel_of(problem), stub::prefill_any);
    problem.has_mask = true;
    EXPECT_EQ(kernel_of(problem), stub::prefill_any_wide);
    problem = make_problem(1, 4, 64);
    EXPECT_EQ(kernel_of(problem), stub::decode_d64);
    problem.has_bias = true;
    EXPECT_EQ(kernel_of(problem), stub::decode_any);
}

// Keys whose heads are neighbours, of 4 KiB and more, 8 MiB of them in all.
TEST_F(Select, WholeKeys) {
    EXPECT_EQ(kernel_of(make_problem(1, 1, 4096, 8, 8, 128, 128)), stub::decode_whole);
    EXPECT_EQ(kernel_of(make_problem(1, 1, 1024, 8, 8, 128, 128)), stub::decode_whole);
    EXPECT_EQ(kernel_of(make_problem(2, 1, 512, 8, 8, 128, 128)), stub::decode_whole);
    EXPECT_EQ(kernel_of(make_problem(1, 1, 1023, 8, 8, 128, 128)), stub::decode_any);
    EXPECT_EQ(kernel_of(make_problem(1, 1, 4096, 7, 7, 128, 128)), stub::decode_any);
    EXPECT_EQ(kernel_of(make_problem(1, 2, 4096, 8, 8, 128, 128)), stub::decode_any);
    heed_problem heads_outside = make_problem(1, 1, 4096, 8, 8, 128, 128);
    heads_outside.k_layout = heads_outside.v_layout = {{8 * 4096 * 128, 128, 4096 * 128, 1}};
    EXPECT_EQ(kernel_of(heads_outside), stub::decode_any);
}

// Keys of 16 bits: in pages only, and from 8 MiB on in all.
TEST_F(Select, WholeKeysOf16Bits) {
    heed_problem problem = make_problem(1, 1, 2048, 8, 8, 128, 128);
    problem.dtype = problem.kv_dtype = HEED_BF16;
    EXPECT_EQ(kernel_of(problem), stub::bf16_kernel);
    problem.kv_storage = HEED_KV_PAGED;
    problem.has_kv_lens = true;
    problem.page_size = 16;
    problem.num_pages = problem.max_pages_per_seq = 128;
    EXPECT_EQ(kernel_of(problem), stub::decode_whole_16);
    problem.max_kv_len = 2047;
    EXPECT_EQ(kernel_of(problem), stub::bf16_kernel);
    problem.max_kv_len = 2048;
    problem.num_heads = problem.num_kv_heads = 7;
    EXPECT_EQ(kernel_of(problem), stub::bf16_kernel);
}

// Whatever plans the thread made before: a thread that makes its first one gets the same kernel.
TEST_F(Select, EarlierPlansDoNotCount) {
    std::vector<heed_problem> problems;
    for (const int32_t q_len : {1, 4, 5}) {
        for (const int32_t kv_len : {7, 8, 300, 3000}) {
            for (const bool has_bias : {false, true}) {
                for (const int32_t head_dim : {64, 80}) {
                    problems.push_back(make_problem(1, q_len, kv_len, 4, 2, head_dim, head_dim));
                    problems.back().has_bias = has_bias;
                }
            }
        }
    }
    for (size_t i = 0; i < problems.size(); i++) {
        std::string first;
        std::thread([&] { first = kernel_of(problems[i]); }).join();
        for (const heed_problem &other : problems) {
            kernel_of(other);
            EXPECT_EQ(kernel_of(problems[i]), first) << i;
        }
    }
    setenv("HEED_FORCE_KERNEL", stub::decode_any, 1);
    EXPECT_EQ(kernel_of(make_problem(1, 1, 7)), stub::decode_any);
    unsetenv("HEED_FORCE_KERNEL");
    EXPECT_EQ(kernel_of(make_problem(1, 1, 8)), stub::decode_d64);
}

// A kernel library of another version of Heed: its kernels take other arguments.
TEST(KernelLibrary, EveryKernelTakesTheArgumentsThatTheRuntimePasses) {
    EXPECT_EQ(heed::foreign_kernel(heed_kernel_table), nullptr);
    heed::Kernel kernels[2] = {heed_kernel_table.kernels[0], heed_kernel_table.kernels[1]};
    kernels[1].arguments_hash++;
    EXPECT_STREQ(heed::foreign_kernel({kernels, 2}), kernels[1].name);
    heed::OpKernel ops[] = {{"rope_f32_avx2", heed::Op::rope, HEED_F32, HEED_F32, heed::Isa::avx2, nullptr}};
    EXPECT_EQ(heed::foreign_kernel({kernels, 1, ops, 1}), nullptr);
    ops[0].arguments_hash = heed::op_arguments_hash(heed::Op::rope, true, false);
    EXPECT_STREQ(heed::foreign_kernel({kernels, 1, ops, 1}), "rope_f32_avx2");
}

TEST(Heuristics, SplitsComeFromTheCapacity) {
    struct {
        int32_t max_kv_len, kv_block, requested, num_splits, split_len;
    } const cases[] = {{0, 64, 0, 1, 512},
                       {1, 64, 0, 1, 512},
                       {512, 64, 0, 1, 512},
                       {513, 64, 0, 2, 512},
                       {4096, 64, 0, 8, 512},
                       {32768, 64, 0, 32, 1024},
                       {131072, 128, 0, 32, 4096},
                       {1 << 20, 128, 0, 256, 4096},
                       {20000, 96, 0, 30, 672},
                       {4096, 64, 1, 1, 4096},
                       {4097, 64, 1, 1, 4160},
                       {100, 64, 7, 2, 64},
                       {2147483647, 64, 2, 2, 1 << 30}};
    for (const auto &c : cases) {
        const heed::Splits splits = heed::choose_splits(c.max_kv_len, c.kv_block, c.requested);
        EXPECT_EQ(splits.num_splits, c.num_splits) << c.max_kv_len;
        EXPECT_EQ(splits.split_len, c.split_len) << c.max_kv_len;
    }
}

TEST(Heuristics, ManyTasksGoInShares) {
    EXPECT_TRUE(heed::takes_shares(heed::Phase::decode, 2, 2));
    EXPECT_FALSE(heed::takes_shares(heed::Phase::prefill, 127, 2));
    EXPECT_TRUE(heed::takes_shares(heed::Phase::prefill, 128, 2));
}

TEST(Heuristics, SmallCallsUseFewThreads) {
    EXPECT_EQ(heed::choose_threads(0, 0, 8), 1);
    EXPECT_EQ(heed::choose_threads(1e5, 1e5, 8), 1);
    EXPECT_EQ(heed::choose_threads(1e20, 0, 8), 8);
    EXPECT_EQ(heed::choose_threads(1e5, 1e6, 8), 3);  // a step of decoding: four heads of 512 keys of 64
    EXPECT_EQ(heed::choose_threads(1e20, 1e20, 1), 1);
}

TEST_F(Select, ForceRunsThatKernelOrFails) {
    setenv("HEED_FORCE_KERNEL", stub::prefill_any_wide, 1);
    Attempt run(make_problem(1, 8, 64));
    EXPECT_STREQ(heed_plan_kernel_name(run.plan.get()), stub::prefill_any_wide);
    ASSERT_EQ(run.execute(), HEED_OK);
    EXPECT_EQ(stub::last_call.kernel, stub::prefill_any_wide);

    setenv("HEED_FORCE_KERNEL", "attention_of_nobody", 1);
    make_plan(make_problem(1, 8, 64), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("\"attention_of_nobody\"; it must name a kernel"));
    const std::string misspelt = std::string(stub::f16_kernel) + "x";
    setenv("HEED_FORCE_KERNEL", misspelt.c_str(), 1);
    make_plan(make_problem(1, 8, 64), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("; near names: " + std::string(stub::f16_kernel) + ", "));

    setenv("HEED_FORCE_KERNEL", stub::foreign_kernel, 1);
    make_plan(make_problem(1, 8, 64), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("cannot serve this"));

    setenv("HEED_FORCE_KERNEL", stub::f16_kernel, 1);
    make_plan(make_problem(1, 8, 64), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("dtype is f32, the kernel has f16"));
}

TEST_F(Select, ExplainNamesEveryCandidate) {
    const PlanPtr plan = make_plan(make_problem(1, 8, 64));
    const std::string text = heed_plan_explain(plan.get());
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info info = {};
        info.struct_size = sizeof(info);
        ASSERT_EQ(heed_kernel_get_info(i, &info), HEED_OK);
        EXPECT_THAT(text, HasSubstr(std::string("  ") + info.name + ": "));
    }
    EXPECT_THAT(text, HasSubstr(std::string(stub::prefill_d64) + ": taken, prefill (q_len 8 > 4), own head dims"));
    EXPECT_THAT(text, HasSubstr(std::string(stub::prefill_any) + ": could serve, but has general head dims"));
    EXPECT_THAT(text, HasSubstr(std::string(stub::decode_d64) + ": could serve, but prefill is preferred"));
    EXPECT_THAT(text, HasSubstr(std::string(stub::f16_kernel) + ": dtype is f32, the kernel has f16"));
    EXPECT_THAT(text, HasSubstr("workspace: " + std::to_string(heed_plan_workspace_bytes(plan.get())) +
                                " bytes for 2 threads"));
}

// The text is made when somebody asks; what it says is of the plan's creation.
TEST_F(Select, ExplainIsOfTheCreation) {
    setenv("HEED_FORCE_KERNEL", stub::prefill_any, 1);
    const PlanPtr forced = make_plan(make_problem(1, 8, 64));
    unsetenv("HEED_FORCE_KERNEL");
    const PlanPtr chosen = make_plan(make_problem(1, 8, 64));
    setenv("HEED_FORCE_KERNEL", stub::f16_kernel, 1);
    EXPECT_THAT(heed_plan_explain(forced.get()),
                StartsWith(std::string(stub::prefill_any) + ": forced by HEED_FORCE_KERNEL"));
    EXPECT_THAT(heed_plan_explain(chosen.get()), StartsWith(std::string(stub::prefill_d64) + ": prefill"));
    unsetenv("HEED_FORCE_KERNEL");
}

TEST_F(Select, ExplainIsThreadSafe) {
    const PlanPtr plan = make_plan(make_problem(1, 8, 64));
    const char *texts[4] = {};
    std::vector<std::thread> threads;
    for (const char *&text : texts) threads.emplace_back([&] { text = heed_plan_explain(plan.get()); });
    for (std::thread &thread : threads) thread.join();
    for (const char *text : texts) EXPECT_EQ(text, texts[0]);
    EXPECT_STRNE(texts[0], "");
}

TEST_F(Select, BatchInvariantIsAcceptedAndExplained) {
    heed_problem problem = make_problem(1, 1, 5000);
    problem.batch_invariant = true;
    const PlanPtr one = make_plan(problem);
    EXPECT_THAT(heed_plan_explain(one.get()), HasSubstr("batch_invariant: kernel and splits do not depend on batch"));
    problem.batch = 60;
    problem.max_threads = 7;
    const PlanPtr many = make_plan(problem);
    EXPECT_STREQ(heed_plan_kernel_name(one.get()), heed_plan_kernel_name(many.get()));
    EXPECT_EQ(heed_plan_num_splits(one.get()), heed_plan_num_splits(many.get()));
}

TEST_F(Select, VerboseTellsTheKernel) {
    testing::internal::CaptureStderr();
    make_plan(make_problem(1, 8, 64));
    setenv("HEED_VERBOSE", "0", 1);
    make_plan(make_problem(1, 8, 64));
    EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
    setenv("HEED_VERBOSE", "1", 1);
    testing::internal::CaptureStderr();
    make_plan(make_problem(1, 8, 64));
    const std::string line = testing::internal::GetCapturedStderr();
    EXPECT_THAT(line, HasSubstr(std::string("heed: ") + stub::prefill_d64 + ": prefill"));
    EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
}

TEST_F(Select, OperationsOfTheRegistry) {
    ASSERT_GT(heed_op_count(), 0);
    heed_op_info info = {};
    EXPECT_EQ(heed_op_get_info(0, nullptr), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_op_get_info(0, &info), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("heed_op_info.struct_size is 0"));
    info.struct_size = sizeof(info);
    EXPECT_EQ(heed_op_get_info(heed_op_count(), &info), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("heed_op_get_info: index is"));
    for (int32_t i = 0; i < heed_op_count(); i++) {
        ASSERT_EQ(heed_op_get_info(i, &info), HEED_OK);
        const heed::OpKernel &kernel = heed_kernel_table.ops[i];
        EXPECT_STREQ(info.name, kernel.name);
        EXPECT_STREQ(info.op, heed::op_name(kernel.op));
        EXPECT_EQ(info.dtype, kernel.dtype);
        EXPECT_EQ(info.supported, info.unsupported_reason[0] == '\0');
    }
}

TEST_F(Select, Registry) {
    heed_kernel_info info = {};
    EXPECT_EQ(heed_kernel_get_info(0, nullptr), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_kernel_get_info(0, &info), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("struct_size is 0"));
    info.struct_size = sizeof(info);
    EXPECT_EQ(heed_kernel_get_info(-1, &info), HEED_INVALID_ARGUMENT);
    EXPECT_EQ(heed_kernel_get_info(heed_kernel_count(), &info), HEED_INVALID_ARGUMENT);
    int found = 0;
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        ASSERT_EQ(heed_kernel_get_info(i, &info), HEED_OK);
        EXPECT_EQ(info.struct_size, sizeof(info));
        if (std::string(info.name) == stub::decode_any) {
            found++;
            EXPECT_EQ(info.phase, HEED_DECODE);
            EXPECT_EQ(info.features, uint32_t{HEED_FEATURE_BIAS | HEED_FEATURE_MASK});
            EXPECT_EQ(info.head_dim, 0);
            EXPECT_EQ(info.isa, HEED_X86_64);
            EXPECT_TRUE(info.supported);
            EXPECT_THAT(info.unsupported_reason, StrEq(""));
        }
        if (std::string(info.name) == stub::foreign_kernel) {
            found++;
            EXPECT_FALSE(info.supported);
            EXPECT_THAT(info.unsupported_reason, Not(StrEq("")));
        }
    }
    EXPECT_EQ(found, 2);
}

// The bound on which a layer's workspace rests.
TEST(Splits, MostSplitsBoundsAllShorterCaches) {
    for (const int32_t kv_block : {16, 64, 256}) {
        int32_t most = 0;
        for (int32_t kv_len = 1; kv_len < 300000; kv_len += kv_len < 20000 ? 1 : 97) {
            most = std::max(most, heed::choose_splits(kv_len, kv_block, 0).num_splits);
            ASSERT_LE(most, heed::most_splits(kv_len, kv_block)) << kv_len << ", blocks of " << kv_block;
        }
    }
}

TEST(Heuristics, ManyRowsHaveLongerSplits) {
    EXPECT_EQ(heed::choose_splits(4096, 32, 0, 15).num_splits, 8);
    EXPECT_EQ(heed::choose_splits(4096, 32, 0, 16).num_splits, 4);
    EXPECT_EQ(heed::choose_splits(4096, 32, 5, 16).num_splits, heed::choose_splits(4096, 32, 5, 1).num_splits);
    EXPECT_EQ(heed::choose_splits(1 << 17, 32, 0, 16).num_splits, 32);
}

TEST(Heuristics, PartsOfKeysAndTheTasksThatTakeTurnsWithThemFitTheCache) {
    EXPECT_EQ(heed::choose_part_keys(512, 128), 1536) << "heads of 128";
    EXPECT_EQ(heed::choose_part_keys(256, 128), 3072) << "heads of 64";
    EXPECT_EQ(heed::choose_part_keys(1 << 20, 128), 128) << "at least a block";
    EXPECT_EQ(heed::choose_bundle(8192, 2, 25216), 31);
    EXPECT_EQ(heed::choose_bundle(160, 4, 25216), 10) << "four bundles for each thread";
    EXPECT_EQ(heed::choose_bundle(8, 2, 25216), 1);
    EXPECT_EQ(heed::choose_bundle(8192, 2, 1 << 20), 1) << "states that leave the cache";
}

TEST(Heuristics, TasksHaveHeadsAndRowsThatReadTheSameMemoryInItsOrder) {
    const auto shape = [](heed::TaskShapeRequest request) {
        const heed::TaskShape s = heed::choose_task_shape(request);
        return std::vector<int32_t>{s.heads, s.row_blocks};
    };
    // {limit, heads, blocks of rows of a head, heads are neighbours, parts, threads}
    EXPECT_EQ(shape({32, 8, 1, true, 16, 2}), (std::vector<int32_t>{8, 1}));
    EXPECT_EQ(shape({32, 8, 1, false, 16, 2}), (std::vector<int32_t>{1, 1}));
    EXPECT_EQ(shape({1, 8, 8, true, 16, 2}), (std::vector<int32_t>{1, 1}));
    EXPECT_EQ(shape({32, 1, 8, true, 16, 2}), (std::vector<int32_t>{1, 8}));
    EXPECT_EQ(shape({32, 8, 8, true, 16, 2}), (std::vector<int32_t>{4, 8})) << "at most the limit";
    EXPECT_EQ(shape({32, 6, 8, true, 16, 2}), (std::vector<int32_t>{3, 8})) << "all tasks have as many heads";
    EXPECT_EQ(shape({32, 8, 33, true, 16, 2}), (std::vector<int32_t>{1, 17})) << "halves of nearly equal size";
    EXPECT_EQ(shape({32, 32, 1, true, 8, 16}), (std::vector<int32_t>{4, 1})) << "four tasks for each thread";
    EXPECT_EQ(shape({32, 1, 8, true, 8, 32}), (std::vector<int32_t>{1, 2})) << "a task for each thread";
}

}  // namespace
