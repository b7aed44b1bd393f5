// A schedule changes speed and scratch, never what is computed: each tuned kernel compared with the kernel of the
// default schedule.
#include <gtest/gtest.h>

#include "runtime/reference/kernel_difference.h"
#include "tests/support/table_kernels.h"

namespace heed_test {
namespace {

const std::string default_suffix = "_default";

bool is_default(const TableKernel &kernel) {
    return kernel.name.size() > default_suffix.size() &&
           kernel.name.compare(kernel.name.size() - default_suffix.size(), default_suffix.size(), default_suffix) == 0;
}

std::vector<TableKernel> tuned_kernels() {
    return only(supported_kernels(), [](const TableKernel &kernel) { return !is_default(kernel); });
}

class Schedule : public testing::TestWithParam<TableKernel> {};

TEST_P(Schedule, EqualsTheDefaultSchedule) {
    EXPECT_EQ(kernel_difference(GetParam().info, GetParam().name + default_suffix), "");
}

INSTANTIATE_TEST_SUITE_P(Kernels, Schedule, testing::ValuesIn(tuned_kernels()),
                         [](const testing::TestParamInfo<TableKernel> &instance) { return instance.param.name; });

TEST(ScheduleTable, HasADefaultKernelForEachTunedKernel) {
    EXPECT_EQ(heed_kernel_count() % 2, 0);
    EXPECT_EQ(tuned_kernels().size() * 2, supported_kernels().size());
    EXPECT_FALSE(tuned_kernels().empty());
}

}  // namespace
}  // namespace heed_test
