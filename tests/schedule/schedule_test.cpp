// A schedule changes speed and scratch, never what is computed: each tuned row beside the row of the default schedule.
#include <gtest/gtest.h>

#include "kernel_difference.h"
#include "rows.h"

namespace heed_test {
namespace {

const std::string default_suffix = "_default";

bool is_default(const Row &row) {
    return row.name.size() > default_suffix.size() &&
           row.name.compare(row.name.size() - default_suffix.size(), default_suffix.size(), default_suffix) == 0;
}

std::vector<Row> tuned_rows() {
    return only(supported_rows(), [](const Row &row) { return !is_default(row); });
}

class Schedule : public testing::TestWithParam<Row> {};

TEST_P(Schedule, EqualsTheDefaultSchedule) {
    EXPECT_EQ(kernel_difference(GetParam().info, GetParam().name + default_suffix), "");
}

INSTANTIATE_TEST_SUITE_P(Rows, Schedule, testing::ValuesIn(tuned_rows()),
                         [](const testing::TestParamInfo<Row> &instance) { return instance.param.name; });

TEST(ScheduleTable, HasADefaultRowForEachTunedRow) {
    EXPECT_EQ(heed_kernel_count() % 2, 0);
    EXPECT_EQ(tuned_rows().size() * 2, supported_rows().size());
    EXPECT_FALSE(tuned_rows().empty());
}

}  // namespace
}  // namespace heed_test
