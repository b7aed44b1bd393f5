// A machine without a CUDA driver.
#include "tests/cuda/fake_driver.h"
#include "tests/cuda/fixture.h"

namespace {

using ::testing::HasSubstr;
using ::testing::StrEq;

TEST(NoDriver, Case63_ExecuteSaysSo) {
    CudaCall call(cuda_problem());
    call.expect_refused(HEED_NO_DEVICE, "device is HEED_CUDA; no CUDA driver (libcuda.so.1) was found");
    call.expect_refused(HEED_NO_DEVICE, "no CUDA driver (libcuda.so.1) was found");  // and again
}

TEST(NoDriver, RegistryTellsWhy) {
    for (int32_t i = 0; i < heed_kernel_count(); i++) {
        heed_kernel_info info = {};
        info.struct_size = sizeof(info);
        ASSERT_EQ(heed_kernel_get_info(i, &info), HEED_OK);
        EXPECT_EQ(info.supported, info.isa < HEED_SM75) << info.name;
        EXPECT_THAT(info.unsupported_reason, StrEq(info.supported ? "" : "no CUDA driver (libcuda.so.1) was found"));
    }
}

TEST(NoDriver, Case63_TheCpuServes) {
    CudaCall call(cpu_problem());
    EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
}

}  // namespace
