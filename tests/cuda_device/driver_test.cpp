// The driver around the kernels: modules, contexts, streams, captures, limits, the controls for tests.
#include <thread>

#include "tests/cuda_device/device.h"

namespace heed::device {
namespace {

// Adds p1 to the word at p0.
const std::string increment = ptx(2, load_parameters(2) + R"(
    ld.global.u32 %r1, [%d0]; cvt.u32.u64 %r2, %d1; add.u32 %r1, %r1, %r2; st.global.u32 [%d0], %r1;)");

class DriverTest : public DeviceTest {
protected:
    uint32_t word(CUdeviceptr address) { return download<uint32_t>(address, 1)[0]; }
    static int exchange_mode(int mode) {
        EXPECT_EQ(call("cuThreadExchangeStreamCaptureMode", &mode), 0);
        return mode;
    }
};

TEST_F(DriverTest, Devices) {
    int count = 0, version = 0, major = 0, threads = 0, shared = 0, unknown = 0;
    EXPECT_EQ(call("cuDeviceGetCount", &count), 0);
    EXPECT_EQ(count, 1);
    EXPECT_EQ(call("cuDriverGetVersion", &version), 0);
    EXPECT_EQ(version, 13000);
    EXPECT_EQ(call("cuDeviceGetAttribute", &major, 75, 0), 0);
    EXPECT_EQ(major, 9);
    EXPECT_EQ(call("cuDeviceGetAttribute", &threads, 1, 0), 0);
    EXPECT_EQ(threads, 1024);
    EXPECT_EQ(call("cuDeviceGetAttribute", &shared, 97, 0), 0);
    EXPECT_EQ(shared, 227 * 1024);
    EXPECT_NE(call("cuDeviceGetAttribute", &unknown, 1234, 0), 0);
    EXPECT_EQ(call("cuDeviceGet", &count, 1), cuda_invalid_device);
    const char *text = nullptr;
    EXPECT_EQ(call("cuGetErrorName", cuda_illegal_address, &text), 0);
    EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

TEST_F(DriverTest, ObjectsBelongToTheirContext) {
    const CUdeviceptr memory = upload(std::vector<uint32_t>(1));
    const CUfunction function = load(increment);
    CUcontext other = nullptr, current = nullptr, primary = nullptr, again = nullptr;
    ASSERT_EQ(call("cuCtxCreate_v2", &other, 0u, 0), 0);
    EXPECT_EQ(call("cuMemsetD32_v2", memory, 1u, size_t{1}), cuda_invalid_context);
    EXPECT_EQ(call("cuMemFree_v2", memory), cuda_invalid_context);
    EXPECT_EQ(launch(function, {}, {1}, 0, {memory, 1}), cuda_invalid_handle);
    EXPECT_EQ(launch(load(increment), {}, {1}, 0, {memory, 1}), cuda_illegal_address);
    EXPECT_EQ(call("cuCtxSynchronize"), cuda_illegal_address);
    EXPECT_EQ(call("cuCtxPopCurrent_v2", &current), 0);
    EXPECT_EQ(current, other);
    // The fault was the other context's.
    EXPECT_EQ(launch(function, {}, {1}, 0, {memory, 1}), 0);
    EXPECT_EQ(call("cuCtxDestroy_v2", other), 0);
    EXPECT_EQ(call("cuCtxSetCurrent", other), cuda_invalid_context);
    EXPECT_EQ(call("cuDevicePrimaryCtxRetain", &primary, 0), 0);
    EXPECT_EQ(call("cuDevicePrimaryCtxRetain", &again, 0), 0);
    EXPECT_EQ(primary, again);
    EXPECT_NE(primary, context_);
    for (int i = 0; i < 2; i++) EXPECT_EQ(call("cuDevicePrimaryCtxRelease_v2", 0), 0);
    EXPECT_EQ(call("cuDevicePrimaryCtxRelease_v2", 0), cuda_invalid_context);
    EXPECT_EQ(call("cuCtxGetCurrent", &current), 0);
    EXPECT_EQ(current, context_);
    EXPECT_EQ(call("cuCtxSetCurrent", static_cast<CUcontext>(nullptr)), 0);
    EXPECT_EQ(launch(function, {}, {1}, 0, {memory, 1}), cuda_invalid_context);
    EXPECT_EQ(call("cuCtxPushCurrent_v2", context_), 0);
}

TEST_F(DriverTest, LimitsOfLaunches) {
    const CUfunction small = load(ptx(0, "", ".maxntid 64, 2, 1"), "k"), exact = load(ptx(0, "", ".reqntid 32"));
    const CUfunction plain = load(ptx(0, "mov.u32 %r1, dynamic;"));
    EXPECT_EQ(launch(small, {}, {128}, 0, {}), 0);
    EXPECT_EQ(launch(small, {}, {129}, 0, {}), cuda_invalid_value);
    EXPECT_EQ(launch(exact, {}, {64}, 0, {}), cuda_invalid_value);
    EXPECT_EQ(launch(exact, {}, {32}, 0, {}), 0);
    EXPECT_EQ(launch(plain, {}, {1025}, 0, {}), cuda_invalid_value);
    EXPECT_EQ(launch(plain, {0}, {1}, 0, {}), cuda_invalid_value);
    EXPECT_EQ(launch(plain, {1, 65536}, {1}, 0, {}), cuda_invalid_value);
    constexpr int dynamic_shared = 8;
    EXPECT_EQ(launch(plain, {}, {1}, 48 * 1024 + 1, {}), cuda_invalid_value);
    EXPECT_EQ(call("cuFuncSetAttribute", plain, dynamic_shared, 227 * 1024 + 1), cuda_invalid_value);
    EXPECT_EQ(call("cuFuncSetAttribute", plain, dynamic_shared, 227 * 1024), 0);
    EXPECT_EQ(launch(plain, {}, {1}, 227 * 1024, {}), 0);
    int value = 0;
    EXPECT_EQ(call("cuFuncGetAttribute", &value, dynamic_shared, plain), 0);
    EXPECT_EQ(value, 227 * 1024);
}

TEST_F(DriverTest, Images) {
    CUmodule module = nullptr;
    const char newer[] = ".version 8.0\n.target sm_100\n.address_size 64\n";
    EXPECT_EQ(call("cuModuleLoadData", &module, static_cast<const void *>(newer)), cuda_no_binary_for_gpu);
    EXPECT_EQ(call("cuModuleLoadData", &module, static_cast<const void *>("\177ELF")), cuda_invalid_image);
    // A fatbin: a cubin, which is passed over, and the text.
    std::string fatbin("\x50\xed\x55\xba\x01\0\x10\0", 8);
    const auto number = [](uint64_t value, int bytes) {
        return std::string(reinterpret_cast<const char *>(&value), bytes);
    };
    const auto entry = [&](uint16_t kind, std::string payload, uint32_t compressed) {
        payload.resize((payload.size() + 8) / 8 * 8);
        return number(kind, 2) + number(0x101, 2) + number(64, 4) + number(payload.size(), 8) + number(compressed, 4) +
               std::string(8, '\0') + number(80, 4) + std::string(32, '\0') + payload;
    };
    const auto container = [&](const std::string &entries) { return fatbin + number(entries.size(), 8) + entries; };
    const std::string good = container(entry(2, "\177ELF", 0) + entry(1, increment, 0));
    const std::string compressed = container(entry(1, increment, 100)), empty = container(entry(2, "\177ELF", 0));
    EXPECT_EQ(call("cuModuleLoadData", &module, static_cast<const void *>(good.data())), 0);
    EXPECT_EQ(call("cuModuleUnload", module), 0);
    EXPECT_EQ(call("cuModuleUnload", module), cuda_invalid_handle);
    EXPECT_EQ(call("cuModuleLoadData", &module, static_cast<const void *>(compressed.data())), cuda_invalid_image);
    EXPECT_NE(last_error().find("compressed"), std::string::npos);
    EXPECT_EQ(call("cuModuleLoadData", &module, static_cast<const void *>(empty.data())), cuda_no_binary_for_gpu);
    // The log of an error, as a JIT compiler gives it.
    char log[200] = {};
    int options[] = {5, 6};
    void *values[] = {log, reinterpret_cast<void *>(sizeof(log))};
    EXPECT_EQ(call("cuModuleLoadDataEx", &module, static_cast<const void *>("nonsense"), 2u, options, values),
              cuda_invalid_ptx);
    EXPECT_NE(std::string(log).find("PTX line 1"), std::string::npos);
}

TEST_F(DriverTest, Mutations) {
    const auto replace = [](const char *from, const char *to, int occurrence) {
        call<void>("heed_device_replace", from, to, occurrence);
    };
    const CUdeviceptr memory = upload(std::vector<uint32_t>(1));
    replace("add.u32 %r1, %r1", "sub.u32 %r1, %r1", 0);
    EXPECT_EQ(run(increment, {}, {1}, 0, {memory, 1}), 0);
    EXPECT_EQ(word(memory), 0xffffffffu);
    replace("%r1", "%r5", -1);
    EXPECT_EQ(run(increment, {}, {1}, 0, {memory, 3}), 0);
    EXPECT_EQ(word(memory), 2u);
    replace("add.u32 %r1", "", 1);
    EXPECT_EQ(load(increment), nullptr);
    EXPECT_NE(last_error().find("1 times in the PTX"), std::string::npos) << last_error();
    replace(nullptr, nullptr, 0);
    EXPECT_EQ(run(increment, {}, {1}, 0, {memory, 1}), 0);
    EXPECT_EQ(word(memory), 3u);
}

TEST_F(DriverTest, CapturesAreReplayed) {
    const CUdeviceptr memory = upload(std::vector<uint32_t>(1));
    const CUfunction function = load(increment);
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    int status = -1;
    ASSERT_EQ(call("cuStreamCreate", &stream, 1u), 0);
    ASSERT_EQ(call("cuStreamBeginCapture_v2", stream, capture_thread_local), 0);
    EXPECT_EQ(call("cuStreamIsCapturing", stream, &status), 0);
    EXPECT_EQ(status, capture_active);
    EXPECT_EQ(call("cuMemsetD32Async", memory, 5u, size_t{1}, stream), 0);
    EXPECT_EQ(launch(function, {}, {1}, 0, {memory, 2}, stream), 0);
    EXPECT_EQ(launch(function, {}, {1}, 0, {memory, 40}, stream), 0);
    EXPECT_EQ(call("cuStreamEndCapture", stream, &graph), 0);
    EXPECT_EQ(word(memory), 0u);
    ASSERT_EQ(call("cuGraphInstantiateWithFlags", &exec, graph, 0ull), 0);
    EXPECT_EQ(call("cuGraphDestroy", graph), 0);
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(call("cuGraphLaunch", exec, stream), 0);
        EXPECT_EQ(word(memory), 47u);
    }
    EXPECT_EQ(call<uint64_t>("heed_device_launches"), 4u);
    EXPECT_EQ(call("cuGraphExecDestroy", exec), 0);
    EXPECT_EQ(call("cuStreamSynchronize", stream), 0);
    EXPECT_EQ(call("cuStreamDestroy_v2", stream), 0);
    EXPECT_EQ(launch(function, {}, {1}, 0, {memory, 2}, stream), cuda_invalid_handle);
}

TEST_F(DriverTest, WhatACaptureForbids) {
    const CUfunction function = load(increment);
    CUstream stream = nullptr;
    CUgraph graph = nullptr;
    CUdeviceptr memory = 0;
    ASSERT_EQ(call("cuStreamCreate", &stream, 0u), 0);
    const auto capture = [&](int mode, auto f) {
        ASSERT_EQ(call("cuStreamBeginCapture_v2", stream, mode), 0);
        f();
    };
    capture(capture_global, [&] {
        EXPECT_EQ(call("cuMemAlloc_v2", &memory, size_t{4}), cuda_capture_unsupported);
        EXPECT_EQ(call("cuStreamEndCapture", stream, &graph), cuda_capture_invalidated);
    });
    capture(capture_global, [&] {
        EXPECT_EQ(load(increment), nullptr);
        EXPECT_EQ(load_result_, cuda_capture_unsupported);
        EXPECT_EQ(call("cuStreamEndCapture", stream, &graph), cuda_capture_invalidated);
    });
    capture(capture_global, [&] {
        EXPECT_EQ(exchange_mode(capture_relaxed), capture_global);
        EXPECT_EQ(call("cuMemAlloc_v2", &memory, size_t{4}), 0);
        EXPECT_NE(load(increment), nullptr);
        EXPECT_EQ(exchange_mode(capture_global), capture_relaxed);
        EXPECT_EQ(call("cuStreamEndCapture", stream, &graph), 0);
        EXPECT_EQ(call("cuGraphDestroy", graph), 0);
    });
    // Another thread's global capture forbids, a thread-local one does not.
    for (const int mode : {capture_global, capture_thread_local}) {
        capture(mode, [&] {
            std::thread([&] {
                EXPECT_EQ(call("cuCtxPushCurrent_v2", context_), 0);
                EXPECT_EQ(call("cuMemAlloc_v2", &memory, size_t{4}),
                          mode == capture_global ? cuda_capture_unsupported : 0);
                EXPECT_EQ(call("cuStreamEndCapture", stream, &graph), cuda_capture_wrong_thread);
            }).join();
            EXPECT_EQ(call("cuStreamEndCapture", stream, &graph),
                      mode == capture_global ? cuda_capture_invalidated : 0);
        });
    }
    capture(capture_thread_local, [&] {
        EXPECT_EQ(launch(function, {}, {1}, 0, {memory, 2}), cuda_capture_implicit);
        EXPECT_EQ(call("cuStreamEndCapture", stream, &graph), cuda_capture_invalidated);
    });
}

TEST_F(DriverTest, EventsAndOptions) {
    CUevent from = nullptr, to = nullptr;
    float milliseconds = -1;
    ASSERT_EQ(call("cuEventCreate", &from, 0u), 0);
    ASSERT_EQ(call("cuEventCreate", &to, 0u), 0);
    EXPECT_EQ(call("cuEventElapsedTime", &milliseconds, from, to), cuda_invalid_handle);
    EXPECT_EQ(call("cuEventRecord", from, static_cast<CUstream>(nullptr)), 0);
    EXPECT_EQ(call("cuEventRecord", to, static_cast<CUstream>(nullptr)), 0);
    EXPECT_EQ(call("cuEventSynchronize", to), 0);
    EXPECT_EQ(call("cuEventElapsedTime", &milliseconds, from, to), 0);
    EXPECT_GE(milliseconds, 0);
    EXPECT_EQ(configure("order=sideways"), 1);
    EXPECT_EQ(configure("order=random:12,arrival=late,checks=off"), 0);
    EXPECT_EQ(configure("order=default arrival=early"), 0);
    EXPECT_EQ(configure("unknown=1"), 1);
}

}  // namespace
}  // namespace heed::device
