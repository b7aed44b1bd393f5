// What a process sees of the driver: calls on the CPU never load it, and it does not survive a fork.
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fixture.h"
#include "tests/support/wait_for_child.h"

namespace {

using ::testing::HasSubstr;

// Runs `checks` in a process of its own, which has not asked the driver yet.
template <class Checks>
void expect_in_child(const Checks &checks) {
    const pid_t child = fork();
    if (child == 0) {
        checks();
        heed_test::exit_child(testing::Test::HasFailure());
    }
    EXPECT_EQ(heed_test::wait_for_child(child, std::chrono::seconds(20)), 0);
}

// First in this file: nothing has loaded the driver yet.
TEST(CudaProcess, CpuCallsDoNotLoadTheDriver) {
    CudaCall call(cpu_problem());
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
    heed_kernel_info info = {};
    info.struct_size = sizeof(info);
    ASSERT_EQ(heed_kernel_get_info(0, &info), HEED_OK);  // a CPU kernel
    EXPECT_FALSE(fake::is_loaded());
}

TEST(CudaProcess, Case63_NoDevice) {
    expect_in_child([] {
        fake::driver().num_devices = 0;
        CudaCall call(cuda_problem());
        call.expect_refused(HEED_NO_DEVICE, "device is HEED_CUDA; the CUDA driver reports no device");
    });
    expect_in_child([] {
        fake::driver().fail["cuInit"] = 100;
        CudaCall call(cuda_problem());
        call.expect_refused(HEED_NO_DEVICE, "device is HEED_CUDA; the CUDA driver reports no device");
    });
}

TEST(CudaProcess, Case63_DriversThatDoNotStart) {
    for (const char *const function : {"cuInit", "cuDeviceGetCount"}) {
        expect_in_child([function] {
            fake::driver().fail[function] = 803;
            CudaCall call(cuda_problem());
            call.expect_refused(HEED_NO_DEVICE, "the CUDA driver does not start: CUDA_ERROR_OF_TEST");
            fake::driver().fail.clear();  // asked once
            call.expect_refused(HEED_NO_DEVICE, "the CUDA driver does not start: CUDA_ERROR_OF_TEST");
        });
    }
}

TEST(CudaProcess, Case63_ErrorsWithoutNames) {
    expect_in_child([] {
        CUctx_st context = {1};
        fake::set_current(&context);
        fake::driver().fail = {{"cuGetErrorName", 1}, {"cuGetErrorString", 1}, {"cuCtxGetDevice", 700}};
        CudaCall call(cuda_problem());
        call.expect_refused(HEED_INTERNAL, "cuCtxGetDevice failed with an unknown error (700): no description");
    });
}

// No kernel is known to run on a device that does not tell its capability.
TEST(CudaProcess, DevicesThatDoNotTell) {
    expect_in_child([] {
        fake::driver().fail["cuDeviceGetAttribute"] = 1;
        heed_kernel_info info = {};
        info.struct_size = sizeof(info);
        EXPECT_EQ(heed_kernel_get_info(heed_kernel_count() - 1, &info), HEED_OK);
        EXPECT_FALSE(info.supported);
    });
}

TEST(CudaProcess, SmallDevice) {
    expect_in_child([] {
        fake::driver().capability = 70;
        heed_kernel_info info = {};
        info.struct_size = sizeof(info);
        EXPECT_EQ(heed_kernel_get_info(heed_kernel_count() - 1, &info), HEED_OK);
        EXPECT_FALSE(info.supported);
        EXPECT_THAT(info.unsupported_reason, HasSubstr("compute capability 7.5"));
    });
}

TEST(CudaProcess, ForkPassesTheDriversErrorOn) {
    CUctx_st context = {1};
    fake::set_current(&context);
    CudaCall call(cuda_problem());
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    expect_in_child([&call] { call.expect_refused(HEED_INTERNAL, "CUDA_ERROR_NOT_INITIALIZED"); });
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
}

}  // namespace
