// The device that a process tests.
#pragma once

#include "runtime/reference/cuda_device.h"
#include "tests/support/reference_names.h"

namespace heed_test {

// HEED_CUDA when the environment has HEED_TEST_DEVICE=cuda: the tests of kernels then run the table's CUDA kernels,
// else its CPU kernels.
heed_device test_device();

// With HEED_TEST_SLOW=1 in the environment, as for the emulated device and its few million warp instructions a second:
// tests take the second of two sizes, and each kernel one entry of each list (KernelTest::some).
bool slow_device();
int32_t sized(int32_t full, int32_t slow);

// Sectors of 32 bytes of global memory that warps read in `work`, as the emulated device counts them; -1 on a GPU.
int64_t sectors_read(const std::function<void()> &work);

}  // namespace heed_test
