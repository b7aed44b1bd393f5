// Failing kernels and exhausted scratch become statuses with sentences; nothing aborts, nothing prints.
#include <HalideRuntime.h>

#include <atomic>
#include <thread>

#include "runtime/halide_bridge.h"
#include "runtime/ops/op_kernels.h"
#include "runtime/scratch.h"
#include "runtime/status.h"
#include "runtime/view.h"
#include "tests/api/fixture.h"

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

// Loops of a kernel that runs for nobody, or for a call that this thread does not work for.
TEST_F(Errors, LoopsOutsideExecuteRunInOrderUpToTheFirstError) {
    heed::install_halide_handlers();
    heed::KernelContext other = {};
    const auto task = [](void *, int index, uint8_t *closure) {
        reinterpret_cast<std::vector<int> *>(closure)->push_back(index);
        return index == 5 ? -7 : 0;
    };
    for (void *user_context : {static_cast<void *>(nullptr), static_cast<void *>(&other)}) {
        std::vector<int> seen;
        auto *const closure = reinterpret_cast<uint8_t *>(&seen);
        EXPECT_EQ(halide_do_par_for(user_context, task, 2, 3, closure), 0);
        EXPECT_EQ(halide_do_par_for(user_context, task, 4, 9, closure), -7);
        EXPECT_THAT(seen, ::testing::ElementsAre(2, 3, 4, 4, 5));
    }
}

TEST_F(Errors, ScratchOfACallThatThisThreadDoesNotWorkFor) {
    heed::install_halide_handlers();
    AlignedBytes memory(static_cast<size_t>(heed::ScratchSlice::bytes_for(1000)));
    heed::KernelContext other = {};
    other.slices = memory.data();
    other.slice_bytes = static_cast<int64_t>(memory.size());
    other.num_threads = 1;
    EXPECT_EQ(halide_malloc(&other, 100), nullptr);
    halide_free(&other, memory.data() + 128);  // the call's own to give back
    other.heap_scratch = true;
    void *const block = halide_malloc(&other, 100);
    EXPECT_NE(block, nullptr);
    halide_free(&other, block);
    EXPECT_EQ(halide_malloc(nullptr, ~size_t{0} / 2), nullptr);
    void *const nothing = halide_malloc(nullptr, 0);
    EXPECT_NE(nothing, nullptr);
    halide_free(nullptr, nothing);
    EXPECT_TRUE(memory.surroundings_intact());
}

TEST_F(Errors, TheFirstSentenceOfAKernelIsKept) {
    heed::install_halide_handlers();
    heed::KernelContext context = {};
    halide_error(&context, "the cause");
    halide_error(&context, "a consequence");
    EXPECT_STREQ(context.message, "the cause");
}

TEST_F(Errors, OneSentenceIsKeptOfTasksThatFailAtOnce) {
    heed::install_halide_handlers();
    for (int round = 0; round < 200; round++) {
        heed::KernelContext context = {};
        std::atomic<int> waiting{2};
        const auto fail_with = [&](const char *sentence) {
            waiting.fetch_sub(1);
            while (waiting.load() > 0) std::this_thread::yield();
            halide_error(&context, sentence);
        };
        std::thread other(fail_with, "the other thread's sentence");
        fail_with("this thread's");
        other.join();
        EXPECT_THAT(context.message, ::testing::AnyOf(::testing::StrEq("the other thread's sentence"),
                                                      ::testing::StrEq("this thread's")));
    }
}

TEST_F(Errors, FailingOperationsAreInternal) {
    heed_problem problem = make_problem(2, 64, 1000);
    std::vector<uint8_t> keep(2 * 4 * 64 * 1000, 7);
    const heed_tensor tensor = as_tensor(keep);
    heed_execution execution = {};
    const auto run = [&] { return heed_dropout_mask(&problem, 1, 2, &tensor, nullptr, &execution); };
    for (const int32_t num_threads : {1, 4}) {
        execution.num_threads = num_threads;
        stub::behaviour.code = -9;
        stub::behaviour.message = "the op's sentence";
        EXPECT_EQ(run(), HEED_INTERNAL);
        EXPECT_THAT(heed_last_error(), HasSubstr("heed_dropout_mask: a kernel failed with code -9: the op's sentence"));
        stub::behaviour.code = 0;
        EXPECT_EQ(run(), HEED_OK) << heed_last_error();
        EXPECT_THAT(keep, ::testing::Each(1));
        std::fill(keep.begin(), keep.end(), uint8_t{7});
    }
    // The caller's pool: one that does nothing, and one that asks for items that there are not.
    heed_parallel_for pool = {[](void *, int32_t, void (*)(void *, int32_t), void *) {}, nullptr};
    execution.pool = &pool;
    EXPECT_EQ(run(), HEED_INTERNAL);
    EXPECT_THAT(heed_last_error(), HasSubstr("heed_parallel_for returned before it ran its items"));
    EXPECT_THAT(keep, ::testing::Each(7));
    pool.run = [](void *, int32_t num_items, void (*item)(void *, int32_t), void *context) {
        for (int32_t i = -1; i <= num_items; i++) item(context, i);
    };
    EXPECT_EQ(run(), HEED_OK) << heed_last_error();
    EXPECT_THAT(keep, ::testing::Each(1));
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

TEST_F(Errors, KernelsWithoutABoundUseTheHeap) {
    setenv("HEED_FORCE_KERNEL", stub::heap_kernel, 1);
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

// An address after the slice would be given back to the heap.
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

TEST(Size, StaysTooLargeOnce64BitsDoNotHoldIt) {
    constexpr int64_t most = INT64_MAX;
    const heed::Size half = {most / 2};
    EXPECT_TRUE((half * 2 + 1).at_most(most));
    EXPECT_FALSE((half * 2 + 1).at_most(most - 1));
    EXPECT_FALSE((half * 3).at_most(most));
    EXPECT_FALSE((half * 3 * 0).at_most(most));
    EXPECT_FALSE((half * 2 + 2 + -5).at_most(most));
}

TEST(Status, Names) {
    const char *const names[] = {
        "HEED_OK",        "HEED_INVALID_ARGUMENT", "HEED_UNSUPPORTED", "HEED_WORKSPACE_TOO_SMALL",
        "HEED_NO_DEVICE", "HEED_OUT_OF_MEMORY",    "HEED_INTERNAL"};
    for (int status = HEED_OK; status <= HEED_INTERNAL; status++) {
        EXPECT_STREQ(heed_status_name(static_cast<heed_status>(status)), names[status]);
    }
    EXPECT_STREQ(heed_status_name(static_cast<heed_status>(7)), "HEED_UNKNOWN_STATUS");
    EXPECT_STREQ(heed_status_name(static_cast<heed_status>(-1)), "HEED_UNKNOWN_STATUS");
    EXPECT_STREQ(heed_version(), "0.1.0");
}

TEST(Status, TypesHaveNamesAndSizes) {
    const struct {
        heed_dtype dtype;
        const char *name;
        int64_t bytes;
    } types[] = {{HEED_F32, "f32", 4}, {HEED_F16, "f16", 2}, {HEED_BF16, "bf16", 2},
                 {HEED_I8, "i8", 1},   {HEED_U8, "u8", 1},   {HEED_I32, "i32", 4}};
    for (const auto &type : types) {
        EXPECT_STREQ(heed::dtype_name(type.dtype), type.name);
        EXPECT_EQ(heed::dtype_bytes(type.dtype), type.bytes) << type.name;
    }
}

TEST(Status, LongSentencesAreCut) {
    const std::string endless(100000, 'x');
    EXPECT_EQ(heed::fail(HEED_UNSUPPORTED, "%s", endless.c_str()), HEED_UNSUPPORTED);
    EXPECT_LT(std::string(heed_last_error()).size(), endless.size());
    EXPECT_THAT(heed_last_error(), ::testing::EndsWith("xxx..."));
}

TEST(Status, OperationsWithoutKernelsNameThem) {
    using heed::Op;
    const std::pair<Op, const char *> ops[] = {{Op::rope, "rope"},
                                               {Op::kv_append, "kv_append"},
                                               {Op::kv_copy, "kv_copy"},
                                               {Op::merge_states, "merge_states"},
                                               {Op::dropout_mask, "dropout_mask"},
                                               {Op::attention_probs, "attention_probs"},
                                               {Op::attention_backward, "attention_backward"},
                                               {Op::linear_rows, "linear_rows"},
                                               {Op::linear, "linear"},
                                               {Op::layer_norm, "layer_norm"},
                                               {Op::write_metadata, "write_metadata"},
                                               {Op::sequences, "sequences"},
                                               {Op::merge_splits, "merge_splits"},
                                               {Op::clip, "clip"},
                                               {Op::key_padding, "key_padding"},
                                               {static_cast<Op>(99), "?"}};
    const heed::OpKernel *kernel = nullptr;
    for (const auto &[op, name] : ops) {
        EXPECT_EQ(heed::find_op_kernel(op, HEED_F16, HEED_BF16, &kernel), HEED_UNSUPPORTED);
        EXPECT_THAT(heed_last_error(), HasSubstr(std::string("no kernel of ") + name + " for f16, bf16"));
        EXPECT_EQ(heed::find_cuda_op_kernel(op, HEED_F16, HEED_BF16, &kernel), HEED_NO_DEVICE);
        EXPECT_THAT(heed_last_error(), HasSubstr(std::string("no CUDA kernel of ") + name + " for f16, bf16"));
        EXPECT_EQ(kernel, nullptr);
    }
}

TEST(Status, OperationsWhoseKernelsThisCpuCannotRun) {
    const heed::OpKernel *kernel = nullptr;
    heed::limit_op_target(static_cast<heed::Isa>(20));
    EXPECT_EQ(heed::find_op_kernel(heed::Op::rope, HEED_F32, HEED_F32, &kernel), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("rope_f32_foreign: "));
    heed::limit_op_target(heed::highest_cpu_target);
    EXPECT_EQ(kernel, nullptr);
    const heed_problem problem = make_problem(1, 2, 3);
    EXPECT_EQ(heed_dropout_mask(&problem, 1, 2, nullptr, nullptr, nullptr), HEED_INVALID_ARGUMENT);
    EXPECT_THAT(heed_last_error(), HasSubstr("keep is NULL"));
}

// A program whose kernel library has no kernels of linear says so.
TEST(Status, LinearWithoutKernelsIsUnsupported) {
    float weight = 1;
    const heed_tensor tensor = {&weight, 1, HEED_F32};
    heed_linear_weights *weights = nullptr;
    EXPECT_EQ(heed_linear_pack(HEED_F32, 1, 1, &tensor, 0, nullptr, &weights), HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("no kernel of linear for f32"));
    EXPECT_EQ(weights, nullptr);
}

TEST(Status, DestroyingNothingIsFine) {
    heed_layer_destroy(nullptr);
    heed_cache_destroy(nullptr);
    heed_linear_weights_destroy(nullptr);
    heed_weights_close(nullptr);
}

}  // namespace
