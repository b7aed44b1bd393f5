// Failing kernels and exhausted scratch become statuses with sentences; nothing aborts, nothing prints.
#include <HalideRuntime.h>

#include "fixture.h"
#include "scratch.h"
#include "status.h"
#include "view.h"

namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Errors : public ApiTest {};

TEST_F(Errors, Case60_EveryHalideCodeBecomesInternal) {
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    Attempt run(make_problem(2, 8, 16));
    for (int code = -1; code >= -49; code--) {
        const std::string message = "sentence " + std::to_string(code);
        stub::behaviour.code = code;
        stub::behaviour.message = message.c_str();
        EXPECT_EQ(run.execute(), HEED_INTERNAL);
        EXPECT_THAT(heed_last_error(), HasSubstr(message));
        EXPECT_THAT(heed_last_error(), HasSubstr("code " + std::to_string(code) + ":"));
        EXPECT_THAT(heed_last_error(), HasSubstr(stub::prefill_d64));
    }
    stub::behaviour.message = nullptr;
    EXPECT_EQ(run.execute(), HEED_INTERNAL);
    EXPECT_THAT(heed_last_error(), HasSubstr("no message"));
    const std::string endless(100000, 'x');
    stub::behaviour.message = endless.c_str();
    EXPECT_EQ(run.execute(), HEED_INTERNAL);
    stub::behaviour = stub::Behaviour{};
    EXPECT_EQ(run.execute(), HEED_OK);  // the next call is fine
    EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
    EXPECT_THAT(testing::internal::GetCapturedStdout(), IsEmpty());
}

TEST_F(Errors, CallsOutsideExecuteNeitherAbortNorPrint) {
    make_plan(make_problem(1, 8, 16));
    testing::internal::CaptureStderr();
    halide_error(nullptr, "nobody listens");
    halide_print(nullptr, "nobody reads");
    void *block = halide_malloc(nullptr, 1000);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 128, 0u);
    halide_free(nullptr, block);
    halide_free(nullptr, nullptr);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), IsEmpty());
}

TEST_F(Errors, ExhaustedScratchIsInternal) {
    heed_problem problem = make_problem(8, 8, 256);
    Attempt run(problem);
    stub::behaviour.scratch_bytes = stub::scratch_per_thread - 4096;
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
    stub::behaviour.scratch_bytes = 2 * stub::scratch_per_thread;
    EXPECT_EQ(run.execute(), HEED_INTERNAL);
    EXPECT_THAT(heed_last_error(), HasSubstr("Out of memory"));
    stub::behaviour.scratch_bytes = 0;
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
}

TEST_F(Errors, RowsWithoutABoundUseTheHeap) {
    setenv("HEED_FORCE_KERNEL", stub::heap_row, 1);
    Attempt run(make_problem(2, 8, 16));
    EXPECT_THAT(heed_plan_explain(run.plan.get()), HasSubstr("from the heap"));
    stub::behaviour.scratch_bytes = 1 << 22;
    EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
    stub::behaviour.code = -11;  // what a kernel returns when halide_malloc has nothing
    EXPECT_EQ(run.execute(), HEED_OUT_OF_MEMORY);
}

TEST_F(Errors, RootScratchSurvivesTheTasks) {
    heed_problem problem = make_problem(8, 4, 2048);  // decode: 4 splits
    Attempt run(problem);
    stub::behaviour.root_scratch_bytes = 4 * 4 * 8 * 4 * 4 * (64 + 32);
    stub::behaviour.scratch_bytes = 20000;
    for (int32_t num_threads : {1, 2}) {
        run.args.num_threads = num_threads;
        EXPECT_EQ(run.execute(), HEED_OK) << heed_last_error();
    }
}

TEST(ScratchSlice, StackInAnyOrder) {
    const int64_t bytes = heed::ScratchSlice::bytes_for(1000);
    EXPECT_EQ(bytes % 128, 0);
    AlignedBytes memory(static_cast<size_t>(bytes));
    heed::ScratchSlice *slice = heed::ScratchSlice::create(memory.data(), bytes);
    void *a = slice->allocate(100), *b = slice->allocate(1), *c = slice->allocate(200);
    for (void *block : {a, b, c}) EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % 128, 0u);
    EXPECT_NE(a, b);
    slice->release(a);
    slice->release(c);
    EXPECT_EQ(slice->allocate(200), c);
    slice->release(b);
    slice->release(c);
    EXPECT_EQ(slice->allocate(1), a);

    const heed::ScratchSlice::Mark mark = slice->mark();
    void *d = slice->allocate(500);
    EXPECT_NE(d, nullptr);
    slice->restore(mark);
    EXPECT_EQ(slice->allocate(500), d);
    for (size_t large : {size_t{1} << 20, size_t{1} << 40, ~size_t{0}, ~size_t{0} - 127}) {
        EXPECT_EQ(slice->allocate(large), nullptr);
    }
    slice->restore({slice->mark().top, heed::ScratchSlice::max_blocks});
    EXPECT_EQ(slice->allocate(1), nullptr);
}

// An address behind the slice would be given back to the heap.
TEST(ScratchSlice, AnEmptyBlockLiesInside) {
    const int64_t bytes = heed::ScratchSlice::bytes_for(0);
    AlignedBytes memory(static_cast<size_t>(bytes));
    heed::ScratchSlice *slice = heed::ScratchSlice::create(memory.data(), bytes);
    ASSERT_NE(slice->allocate(static_cast<size_t>(bytes - slice->mark().top - 128)), nullptr);
    EXPECT_LT(static_cast<char *>(slice->allocate(0)), memory.data() + bytes);
    EXPECT_EQ(slice->allocate(0), nullptr);
}

TEST(ScratchSlice, HoldsItsPayloadInAsManyBlocksAsItPromises) {
    const int64_t bytes = heed::ScratchSlice::bytes_for(24 * 129);
    AlignedBytes memory(static_cast<size_t>(bytes));
    heed::ScratchSlice *slice = heed::ScratchSlice::create(memory.data(), bytes);
    for (int i = 0; i < heed::ScratchSlice::max_blocks; i++) {
        char *block = static_cast<char *>(slice->allocate(129));
        ASSERT_NE(block, nullptr);
        EXPECT_LE(block + 129, memory.data() + bytes);
    }
}

TEST(Status, Names) {
    EXPECT_STREQ(heed_status_name(HEED_OK), "HEED_OK");
    EXPECT_STREQ(heed_status_name(HEED_INTERNAL), "HEED_INTERNAL");
    EXPECT_STREQ(heed_status_name(static_cast<heed_status>(7)), "HEED_UNKNOWN_STATUS");
    EXPECT_STREQ(heed_status_name(static_cast<heed_status>(-1)), "HEED_UNKNOWN_STATUS");
    EXPECT_STREQ(heed_version(), "0.1.0");
}

TEST(Status, LongSentencesAreCut) {
    const std::string endless(100000, 'x');
    EXPECT_EQ(heed::fail(HEED_UNSUPPORTED, "%s", endless.c_str()), HEED_UNSUPPORTED);
    EXPECT_LT(std::string(heed_last_error()).size(), endless.size());
    EXPECT_THAT(heed_last_error(), ::testing::EndsWith("xxx..."));
}

TEST(Status, FunctionsWithoutKernelsSaySo) {
    EXPECT_EQ(heed_attention_backward(nullptr, nullptr, nullptr), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("heed_attention_backward is not built yet"));
    EXPECT_EQ(heed_layer_backward(nullptr, nullptr, nullptr), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("heed_layer_backward is not built yet"));
}

// A program whose kernel library has no rows of linear says so.
TEST(Status, LinearWithoutRowsIsUnsupported) {
    float weight = 1;
    const heed_tensor tensor = {&weight, 1, HEED_F32};
    heed_linear_weights *weights = nullptr;
    EXPECT_EQ(heed_linear_pack(HEED_F32, 1, 1, &tensor, 0, nullptr, &weights), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("no row of linear for f32"));
    EXPECT_EQ(weights, nullptr);
}

TEST(Status, DestroyingNothingIsFine) {
    heed_layer_destroy(nullptr);
    heed_cache_destroy(nullptr);
    heed_linear_weights_destroy(nullptr);
    heed_weights_close(nullptr);
}

}  // namespace
