// What a process sees of the driver: calls on the CPU never load it, and it does not survive a fork.
#include <sys/wait.h>
#include <unistd.h>

#include "fake_driver.h"
#include "fixture.h"

namespace {

using ::testing::HasSubstr;

// First in this file: nothing has loaded the driver yet.
TEST(CudaProcess, CpuCallsDoNotLoadTheDriver) {
    CudaCall call(cpu_problem());
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
    heed_kernel_info_t info = {};
    info.struct_size = sizeof(info);
    ASSERT_EQ(heed_kernel_info(0, &info), HEED_OK);  // a CPU row
    EXPECT_FALSE(fake::is_loaded());
}

TEST(CudaProcess, Case63_NoDevice) {
    const pid_t child = fork();
    if (child == 0) {
        fake::driver().num_devices = 0;
        CudaCall call(cuda_problem());
        call.expect_refused(HEED_NO_DEVICE, "device is HEED_CUDA; the CUDA driver reports no device");
        _exit(testing::Test::HasFailure());
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

TEST(CudaProcess, SmallDevice) {
    const pid_t child = fork();
    if (child == 0) {
        fake::driver().capability = 70;
        heed_kernel_info_t info = {};
        info.struct_size = sizeof(info);
        EXPECT_EQ(heed_kernel_info(heed_kernel_count() - 1, &info), HEED_OK);
        EXPECT_FALSE(info.supported);
        EXPECT_THAT(info.unsupported_reason, HasSubstr("compute capability 7.5"));
        _exit(testing::Test::HasFailure());
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
}

TEST(CudaProcess, ForkPassesTheDriversErrorOn) {
    CUctx_st context = {1};
    fake::set_current(&context);
    CudaCall call(cuda_problem());
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    const pid_t child = fork();
    if (child == 0) {
        call.expect_refused(HEED_INTERNAL, "CUDA_ERROR_NOT_INITIALIZED");
        _exit(testing::Test::HasFailure());
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
}

}  // namespace
