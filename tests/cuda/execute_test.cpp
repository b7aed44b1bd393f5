// What one execute asks of the CUDA driver, on a fake one.
#include <HalideRuntime.h>
#include <HalideRuntimeCuda.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "runtime/halide_bridge.h"
#include "runtime/sequences.h"
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fixture.h"

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Calls = std::vector<std::string>;

// Ids are never used twice in a process.
CUctx_st new_context() {
    static unsigned long long last = 100;
    return {last++};
}

class CudaExecute : public ::testing::Test {
protected:
    CudaExecute() { fake::set_current(&context); }
    ~CudaExecute() override {
        fake::set_current(nullptr);
        driver.fail.clear();
        driver.on_launch = nullptr;
        driver.capability = 80;
        stub::behaviour = stub::Behaviour{};
    }

    // The driver's calls during one execute that succeeds.
    Calls calls_of(CudaCall &call) {
        driver.calls.clear();
        EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
        return driver.calls;
    }
    static int count(const Calls &calls, const char *name) {
        return static_cast<int>(std::count(calls.begin(), calls.end(), name));
    }

    fake::Driver &driver = fake::driver();
    CUctx_st context = new_context(), other = new_context();
    CUstream_st stream = {&context}, others_stream = {&other};
};

TEST_F(CudaExecute, LaterCallsOnlyLaunch) {
    CudaCall call(cuda_problem());
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 1);
    EXPECT_THAT(calls_of(call), ElementsAre("cuCtxGetCurrent", "cuCtxGetId", "cuLaunchKernel"));
    call.args.stream = &stream;
    EXPECT_THAT(calls_of(call), ElementsAre("cuCtxGetCurrent", "cuStreamGetCtx", "cuCtxGetId", "cuLaunchKernel"));
}

TEST_F(CudaExecute, LaunchesAsTheKernelAsks) {
    CudaCall call(cuda_problem());
    call.args.stream = &stream;
    std::vector<std::string> launches;
    driver.on_launch = [&](const fake::Launch &launch) {
        launches.push_back(launch.image + " " + launch.entry);
        EXPECT_THAT(launch.blocks, ElementsAre(3, 2, 1));
        EXPECT_THAT(launch.threads, ElementsAre(128, 1, 1));
        EXPECT_EQ(launch.stream, &stream);
        EXPECT_EQ(launch.context, &context);
        EXPECT_EQ(*static_cast<const int64_t *>(launch.parameters[0]), 42);
        EXPECT_EQ(*static_cast<const uint64_t *>(launch.parameters[1]), CudaCall::address(4));  // out
    };
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(launches, ElementsAre(std::string(stub::f16_kernel) + " attention"));
}

TEST_F(CudaExecute, TheStreamsContextIsUsed) {
    CudaCall call(cuda_problem());
    call.args.stream = &others_stream;
    CUctx_st *used = nullptr;
    driver.on_launch = [&](const fake::Launch &launch) { used = launch.context; };
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 1);
    EXPECT_EQ(used, &other);
    EXPECT_EQ(fake::current(), &context);
    EXPECT_THAT(calls_of(call), ElementsAre("cuCtxGetCurrent", "cuStreamGetCtx", "cuCtxPushCurrent", "cuCtxGetId",
                                            "cuLaunchKernel", "cuCtxPopCurrent"));
    fake::set_current(nullptr);
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_EQ(fake::current(), nullptr);
    call.args.stream = nullptr;
    call.expect_refused(HEED_INVALID_ARGUMENT, "stream is NULL and no CUDA context is current on this thread");
    fake::set_current(&context);
    driver.fail["cuStreamGetCtx"] = 400;
    call.args.stream = &stream;
    call.expect_refused(HEED_INVALID_ARGUMENT, "cuStreamGetCtx failed with CUDA_ERROR_OF_TEST (400)");
}

TEST_F(CudaExecute, ModulesBelongToContexts) {
    CudaCall call(cuda_problem());
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 1);
    context = new_context();  // the old one was destroyed, and the new one has its address
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 1);
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 0);
    std::vector<CUctx_st> many(100);
    for (CUctx_st &one : many) {
        one = new_context();
        fake::set_current(&one);
        EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 1);
        EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 0);
    }
    fake::set_current(&many[80]);  // among the last 32
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 0);
    fake::set_current(&many[10]);
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 1);
}

TEST_F(CudaExecute, ThreadsLoadOnce) {
    heed_problem problem = cuda_problem();
    problem.dtype = problem.kv_dtype = HEED_F32;
    const int loaded = driver.loaded - driver.unloaded;
    std::atomic<int> launches{0};
    driver.on_launch = [&](const fake::Launch &) { launches++; };
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) {
        threads.emplace_back([&] {
            fake::set_current(&context);
            CudaCall call(problem);
            for (int n = 0; n < 100; n++) EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
            fake::set_current(nullptr);
        });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(launches, 800);
    EXPECT_GE(driver.loaded - driver.unloaded, loaded + 1);
    EXPECT_LE(driver.loaded - driver.unloaded, loaded + 8);  // those that began before the first was done
    CudaCall call(problem);
    EXPECT_EQ(count(calls_of(call), "cuModuleLoadData"), 0);
}

TEST_F(CudaExecute, SharedMemoryIsAskedForOnce) {
    CudaCall call(cuda_problem());
    stub::behaviour.shared_bytes = 48 << 10;
    EXPECT_EQ(count(calls_of(call), "cuFuncSetAttribute"), 0);
    stub::behaviour.shared_bytes = 96 << 10;
    EXPECT_EQ(count(calls_of(call), "cuFuncSetAttribute"), 1);
    EXPECT_EQ(driver.max_shared_bytes[stub::f16_kernel], 96 << 10);
    EXPECT_EQ(count(calls_of(call), "cuFuncSetAttribute"), 0);
    stub::behaviour.shared_bytes = 64 << 10;
    EXPECT_EQ(count(calls_of(call), "cuFuncSetAttribute"), 0);
    driver.on_launch = [&](const fake::Launch &launch) { EXPECT_EQ(launch.shared_bytes, 64u << 10); };
    EXPECT_EQ(call.execute(), HEED_OK);
}

TEST_F(CudaExecute, LoadingDuringACapture) {
    CudaCall call(cuda_problem());
    driver.capture_mode = 1;
    driver.capture_mode_of_load.clear();
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(driver.capture_mode_of_load, ElementsAre(2));
    EXPECT_EQ(driver.capture_mode, 1);
    driver.capture_mode = 0;
}

TEST_F(CudaExecute, Case63_Failures) {
    const struct {
        const char *call;
        int code;
        heed_status status;
        const char *sentence;
    } cases[] = {
        {"cuCtxGetCurrent", 3, HEED_INTERNAL, "cuCtxGetCurrent failed with CUDA_ERROR_NOT_INITIALIZED (3)"},
        {"cuCtxGetId", 709, HEED_INVALID_ARGUMENT, "cuCtxGetId failed"},
        {"cuCtxGetDevice", 100, HEED_NO_DEVICE, "cuCtxGetDevice failed"},
        {"cuDeviceGetAttribute", 1, HEED_INTERNAL, "cuDeviceGetAttribute failed"},
        {"cuModuleLoadData", 2, HEED_OUT_OF_MEMORY, "cuModuleLoadData failed with CUDA_ERROR_OUT_OF_MEMORY (2)"},
        {"cuModuleGetFunction", 500, HEED_INTERNAL, "cuModuleGetFunction failed with CUDA_ERROR_OF_TEST (500)"},
        {"cuFuncSetAttribute", 1, HEED_INTERNAL, "cuFuncSetAttribute failed"},
        {"cuLaunchKernel", 700, HEED_INTERNAL, "cuLaunchKernel failed with CUDA_ERROR_OF_TEST (700): the test asked"},
        {"cuLaunchKernel", 2, HEED_OUT_OF_MEMORY, "cuLaunchKernel failed with CUDA_ERROR_OUT_OF_MEMORY"},
    };
    stub::behaviour.shared_bytes = 96 << 10;
    heed_problem problem = cuda_problem();
    problem.cuda_capability = 80;  // plans do not ask
    CudaCall call(problem);
    for (const auto &c : cases) {
        driver.fail = {{c.call, c.code}};
        call.expect_refused(c.status, c.sentence);
    }
    driver.fail.clear();
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
    stub::behaviour.launches = 0;
    call.expect_refused(HEED_INTERNAL, "made 0 launches; it must make one");
    stub::behaviour.launches = 2;
    call.expect_refused(HEED_INTERNAL, "made 2 launches; it must make one");
    stub::behaviour.code = -7;
    call.expect_refused(HEED_INTERNAL, std::string(stub::f16_kernel) + " failed with code -7: no message");
}

TEST_F(CudaExecute, ChipsBelowTheKernel) {
    driver.capability = 75;
    heed_problem problem = cuda_problem();
    problem.position = HEED_EXPLICIT;
    problem.cuda_capability = 80;
    CudaCall call(problem);
    const int32_t offsets[] = {1, 2};
    call.args.q_offsets = offsets;
    driver.calls.clear();
    call.expect_refused(HEED_UNSUPPORTED,
                        std::string(stub::f16_kernel) + " needs compute capability 8.0; the chip has 7.5");
    EXPECT_EQ(count(driver.calls, "cuLaunchKernel"), 0);
    problem.dtype = problem.kv_dtype = HEED_F32;
    CudaCall narrow(problem);
    narrow.args.q_offsets = offsets;
    EXPECT_EQ(narrow.execute(), HEED_OK) << heed_last_error();
}

TEST_F(CudaExecute, PlansAreForTheChipOfTheCurrentContext) {
    driver.capability = 75;
    context = new_context();
    heed_problem problem = cuda_problem();
    make_plan(problem, HEED_UNSUPPORTED);
    EXPECT_THAT(heed_last_error(), HasSubstr("the kernel needs compute capability 8.0, the chip has less"));
    problem.cuda_capability = 80;
    make_plan(problem);
    problem.cuda_capability = 0;
    fake::set_current(nullptr);
    make_plan(problem);
    context = new_context();
    fake::set_current(&context);
    driver.fail["cuCtxGetDevice"] = 700;
    make_plan(problem);
}

TEST_F(CudaExecute, UniformProblems) {
    heed_problem problem = cuda_problem(3, 100, 130);
    problem.position = HEED_BOTTOM_RIGHT;
    problem.causal = true;
    problem.window_left = 50;
    problem.want_lse = true;
    CudaCall call(problem);
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    const stub::Call &seen = stub::last_call;
    EXPECT_EQ(seen.uniform, 1);
    EXPECT_EQ(seen.visible_begin, 30 - 50);
    EXPECT_EQ(seen.visible_end, 31);
    EXPECT_EQ(seen.position_offset, 30);
    EXPECT_THAT(seen.q.extents, ElementsAre(64, 4, 100, 3));
    EXPECT_THAT(seen.q.strides, ElementsAre(1, 64, 256, 25600));
    EXPECT_THAT(seen.k.extents, ElementsAre(64, 2, 130, 3));
    EXPECT_THAT(seen.lse.extents, ElementsAre(64, 4, 100, 3));
    EXPECT_THAT(seen.lse.strides, ElementsAre(0, 100, 1, 400));
    EXPECT_EQ(seen.q.device, CudaCall::address(1));
    EXPECT_EQ(seen.lse.device, CudaCall::address(5));
    EXPECT_EQ(seen.q.host, nullptr);
    for (const stub::Buffer *unused : {&seen.mask, &seen.bias, &seen.sink, &seen.alibi_slopes, &seen.page_table}) {
        EXPECT_EQ(unused->device, 0u);
    }
}

TEST_F(CudaExecute, FeaturesAreHandedOn) {
    heed_problem problem = cuda_problem(1, 8, 16);
    problem.has_mask = problem.mask_true_hides = problem.has_bias = problem.has_sink = problem.has_alibi = true;
    CudaCall call(problem);
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    const stub::Call &seen = stub::last_call;
    EXPECT_EQ(seen.mask.device, CudaCall::address(6));
    EXPECT_EQ(seen.bias.device, CudaCall::address(7));
    EXPECT_EQ(seen.sink.device, CudaCall::address(8));
    EXPECT_EQ(seen.alibi_slopes.device, CudaCall::address(9));
    EXPECT_EQ(seen.mask_form, heed::mask_true_hides);
    EXPECT_EQ(seen.bias_form, heed::bias_of_f32);
    const auto workspace = reinterpret_cast<uintptr_t>(call.args.workspace);
    EXPECT_EQ(seen.lse.device, workspace);  // the caller wants none
}

// k and v without elements may be NULL: the kernel writes the results of no keys.
TEST_F(CudaExecute, NoKeys) {
    CudaCall call(cuda_problem(2, 8, 0));
    call.args.k.data = nullptr;
    EXPECT_EQ(count(calls_of(call), "cuLaunchKernel"), 1);
    EXPECT_EQ(stub::last_call.k.device, 0u);
    EXPECT_EQ(stub::last_call.v.device, 0u);
    EXPECT_THAT(stub::last_call.k.extents, ElementsAre(64, 2, 0, 2));
    EXPECT_EQ(stub::last_call.k.strides[0], 1);
}

// The table of 70 sequences goes to the device in launches of 32 lines.
TEST_F(CudaExecute, RaggedProblems) {
    heed_problem problem = cuda_problem(70, 9, 13);
    problem.q_storage = HEED_Q_VARLEN;
    problem.kv_storage = HEED_KV_VARLEN;
    problem.position = HEED_BOTTOM_RIGHT;
    problem.causal = true;
    problem.want_lse = true;
    std::vector<int32_t> queries = {0}, keys = {0};
    for (int32_t b = 0; b < problem.batch; b++) {
        queries.push_back(queries.back() + b % 10);
        keys.push_back(keys.back() + (3 * b) % 14);
    }
    problem.total_q = queries.back();
    problem.total_kv = keys.back();
    CudaCall call(problem);
    call.args.cu_seqlens_q = queries.data();
    call.args.cu_seqlens_kv = keys.data();
    Calls images;
    driver.on_launch = [&](const fake::Launch &launch) {
        images.push_back(launch.image);
        if (launch.image != "write_metadata") return;
        const int32_t words = *static_cast<const int32_t *>(launch.parameters[heed::num_metadata_words / 2]);
        auto *to = *static_cast<int32_t **>(launch.parameters[heed::num_metadata_words / 2 + 1]);
        for (int32_t i = 0; i < words; i++) {
            const auto pair = *static_cast<const uint64_t *>(launch.parameters[i / 2]);
            to[i] = static_cast<int32_t>(pair >> (i % 2 * 32));
        }
    };
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(images, ElementsAre("write_metadata", "write_metadata", "write_metadata", stub::f16_kernel));
    EXPECT_EQ(stub::last_call.uniform, 0);
    EXPECT_EQ(stub::last_call.tasks.device, reinterpret_cast<uintptr_t>(call.args.workspace));
    EXPECT_THAT(stub::last_call.tasks.extents, ElementsAre(heed::num_sequence_fields, 70));
    EXPECT_THAT(stub::last_call.q.extents, ElementsAre(64, 4, problem.total_q, 70));
    EXPECT_EQ(stub::last_call.q.strides[3], 0);
    EXPECT_EQ(stub::last_call.k.strides[3], 0);
    for (size_t b = 0; b < 70; b++) {
        const int32_t *line = call.table() + b * heed::num_sequence_fields;
        const int32_t q_len = queries[b + 1] - queries[b], kv_len = keys[b + 1] - keys[b];
        EXPECT_EQ(line[heed::sequence_q_len], q_len);
        EXPECT_EQ(line[heed::sequence_first_q], queries[b]);
        EXPECT_EQ(line[heed::sequence_kv_len], kv_len);
        EXPECT_EQ(line[heed::sequence_first_key], keys[b]);
        EXPECT_EQ(line[heed::sequence_visible_begin], std::numeric_limits<int32_t>::min());
        EXPECT_EQ(line[heed::sequence_visible_end], std::min(kv_len, kv_len - q_len + 1));
        EXPECT_EQ(line[heed::sequence_position_offset], kv_len - q_len);
        EXPECT_EQ(line[heed::sequence_padding], 0);
    }
}

TEST_F(CudaExecute, HostMetadataIsChecked) {
    heed_problem problem = cuda_problem(3);
    problem.has_kv_lens = true;
    CudaCall call(problem);
    const int32_t lens[] = {1, 131, 2};
    call.args.kv_lens = lens;
    driver.calls.clear();
    call.expect_refused(HEED_INVALID_ARGUMENT, "kv_lens[1] is 131; it must be 0..130");
    EXPECT_EQ(count(driver.calls, "cuLaunchKernel"), 0);
    call.args.kv_lens = nullptr;
    call.expect_refused(HEED_INVALID_ARGUMENT, "kv_lens is NULL");
}

TEST_F(CudaExecute, MetadataOnTheDevice) {
    heed_problem problem = cuda_problem(3, 100, 130);
    problem.q_storage = HEED_Q_VARLEN;
    problem.total_q = 200;
    problem.has_kv_lens = true;
    problem.metadata_on_device = true;
    problem.position = HEED_BOTTOM_RIGHT;
    problem.causal = true;
    problem.window_left = 7;
    CudaCall call(problem);
    call.args.cu_seqlens_q = reinterpret_cast<const int32_t *>(CudaCall::address(20));
    call.args.kv_lens = reinterpret_cast<const int32_t *>(CudaCall::address(21));
    call.args.cu_seqlens_kv = reinterpret_cast<const int32_t *>(CudaCall::address(22));  // not used
    call.args.device_status = reinterpret_cast<int32_t *>(CudaCall::address(23));
    Calls images;
    driver.on_launch = [&](const fake::Launch &launch) { images.push_back(launch.image); };
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(images, ElementsAre("sequences", stub::f16_kernel));
    const stub::SequencesCall &seen = stub::last_sequences;
    EXPECT_EQ(seen.cu_seqlens_q, CudaCall::address(20));
    EXPECT_EQ(seen.kv_lens, CudaCall::address(21));
    EXPECT_EQ(seen.cu_seqlens_kv, 0u);
    EXPECT_EQ(seen.q_offsets, 0u);
    EXPECT_EQ(seen.batch, 3);
    EXPECT_EQ(seen.max_q_len, 100);
    EXPECT_EQ(seen.max_kv_len, 130);
    EXPECT_EQ(seen.total_q, 200);
    EXPECT_EQ(seen.position, HEED_BOTTOM_RIGHT);
    EXPECT_EQ(seen.causal, 1);
    EXPECT_EQ(seen.window_left, 7);
    EXPECT_EQ(seen.window_right, -1);
    EXPECT_EQ(seen.status, CudaCall::address(23));
    EXPECT_EQ(seen.table, stub::last_call.tasks.device);
    EXPECT_EQ(stub::last_call.uniform, 0);
    call.args.device_status = nullptr;
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_EQ(seen.status, 0u);
}

TEST_F(CudaExecute, SplitsAreMerged) {
    heed_problem problem = cuda_problem(3, 2, 5000);
    problem.head_dim = problem.head_dim_v = 128;
    CudaCall call(problem);
    Calls images;
    driver.on_launch = [&](const fake::Launch &launch) { images.push_back(launch.image); };
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(images, ElementsAre(stub::decode_kernel, "merge_splits"));
    const stub::Call &kernel = stub::last_call;
    EXPECT_EQ(kernel.num_splits, 10);
    EXPECT_EQ(kernel.split_len, 512);
    EXPECT_THAT(kernel.states.extents, ElementsAre(136, 40, 2, 3));
    EXPECT_THAT(kernel.states.strides, ElementsAre(1, 136, 136 * 40, 136 * 40 * 2));
    const stub::MergeCall &merge = stub::last_merge;
    EXPECT_EQ(merge.num_splits, 10);
    EXPECT_EQ(merge.state_floats, 136);
    EXPECT_EQ(merge.states, kernel.states.device);
    EXPECT_EQ(merge.out, CudaCall::address(4));
    EXPECT_EQ(merge.lse, kernel.lse.device);
    EXPECT_EQ(merge.head_dim, 128);
    EXPECT_EQ(merge.num_heads, 4);
    EXPECT_EQ(merge.tokens, 2);
    EXPECT_EQ(merge.rows, 4 * 2 * 3);
}

// A row of an odd number of pages starts at an even one; only pages in use are copied.
TEST_F(CudaExecute, PageTableOfTheHost) {
    heed_problem problem = cuda_problem(2, 1, 40);
    problem.head_dim = problem.head_dim_v = 128;
    problem.kv_storage = HEED_KV_PAGED;
    problem.has_kv_lens = true;
    problem.page_size = 8;
    problem.num_pages = 9;
    problem.max_pages_per_seq = 5;
    CudaCall call(problem);
    const int32_t pages[] = {3, 4, 8, -1, -1, 7, 6, 5, 4, 3}, lens[] = {20, 40};
    call.args.page_table = pages;
    call.args.kv_lens = lens;
    std::vector<int32_t> counts;
    driver.on_launch = [&](const fake::Launch &launch) {
        if (launch.image != "write_metadata") return;
        counts.push_back(*static_cast<const int32_t *>(launch.parameters[heed::num_metadata_words / 2]));
        EXPECT_EQ(*static_cast<const uint64_t *>(launch.parameters[heed::num_metadata_words / 2 + 1]) % 8, 0u);
    };
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    EXPECT_THAT(counts, ElementsAre(4, 6, 2 * heed::num_sequence_fields));
    EXPECT_THAT(stub::last_call.page_table.strides, ElementsAre(1, 6));
    EXPECT_THAT(stub::last_call.k.extents, ElementsAre(128, 2, 8, 9));
    EXPECT_EQ(stub::last_call.k.strides[3], 128 * 2 * 8);
}

// Every kind of metadata that may be on the device, in each storage of the keys.
TEST_F(CudaExecute, MetadataOnTheDeviceOfEveryStorage) {
    heed_problem problem = cuda_problem(3, 4, 130);
    problem.head_dim = problem.head_dim_v = 128;
    problem.metadata_on_device = true;
    problem.position = HEED_EXPLICIT;
    const auto has_of = [](const heed_problem &p) {
        CudaCall call(p);
        for (const int32_t **array : {&call.args.cu_seqlens_q, &call.args.cu_seqlens_kv, &call.args.kv_lens,
                                      &call.args.q_offsets, &call.args.page_table}) {
            *array = reinterpret_cast<const int32_t *>(CudaCall::address(20) +
                                                       4096 * static_cast<uint64_t>(array - &call.args.cu_seqlens_q));
        }
        EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
        const stub::SequencesCall &seen = stub::last_sequences;
        std::string given;
        for (const uint64_t array : {seen.cu_seqlens_q, seen.cu_seqlens_kv, seen.kv_lens, seen.q_offsets}) {
            given += array != 0 ? '1' : '0';
        }
        return given;
    };
    EXPECT_EQ(has_of(problem), "0001");
    problem.q_storage = HEED_Q_VARLEN;
    problem.total_q = 9;
    problem.kv_storage = HEED_KV_VARLEN;
    problem.total_kv = 200;
    EXPECT_EQ(has_of(problem), "1101");
    problem.position = HEED_TOP_LEFT;
    problem.kv_storage = HEED_KV_PAGED;
    problem.has_kv_lens = true;
    problem.page_size = 8;
    problem.num_pages = 9;
    problem.max_pages_per_seq = 5;
    EXPECT_EQ(has_of(problem), "1010");
    EXPECT_EQ(stub::last_sequences.max_kv_len, 40);  // keys that the pages hold
}

// What a program's own Halide kernels would ask of the functions that Heed defines.
TEST_F(CudaExecute, LaunchesOfNoCallAreRefused) {
    size_t sizes[] = {0};
    void *arguments[] = {nullptr};
    int8_t is_buffer[] = {0};
    EXPECT_NE(halide_cuda_run(nullptr, nullptr, "entry", 1, 1, 1, 1, 1, 1, 0, sizes, arguments, is_buffer), 0);
    heed::install_halide_handlers();
    halide_buffer_t buffer = {};
    EXPECT_NE(halide_copy_to_device(nullptr, &buffer, halide_cuda_device_interface()), 0);
    EXPECT_NE(halide_copy_to_device(nullptr, &buffer, nullptr), 0);
}

TEST_F(CudaExecute, RegistryAsksTheDriver) {
    heed_kernel_info info = {};
    info.struct_size = sizeof(info);
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        ASSERT_EQ(heed_kernel_get_info(i, &info), HEED_OK);
        EXPECT_TRUE(info.supported) << info.name << info.unsupported_reason;
    }
}

}  // namespace
