// A schedule changes speed and scratch, never what is computed: each tuned row beside the row of the default schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "call.h"
#include "rows.h"

namespace heed_test {
namespace {

const std::string default_suffix = "_default";

bool is_default(const Row &row) {
    return row.name.size() > default_suffix.size() &&
           row.name.compare(row.name.size() - default_suffix.size(), default_suffix.size(), default_suffix) == 0;
}

std::vector<Row> tuned_rows() {
    std::vector<Row> rows = supported_rows();
    rows.erase(std::remove_if(rows.begin(), rows.end(), is_default), rows.end());
    return rows;
}

float largest(const std::vector<float> &values) {
    float most = 0;
    for (const float v : values) most = std::max(most, std::fabs(v));
    return most;
}

// Both rows sum the same tree; they differ where one rounds a product that the other keeps inside an FMA. That moves a
// logit by at most head_dim / 2 ulp of its partial sums, a weight by as much relatively, and the output by two such
// steps. An output of 16 bits may then be rounded to the neighbour: a whole unit of the largest v.
double allowed(const Attention &a) {
    const double logit = a.head_dim * double{largest(a.q)} * largest(a.k) / std::sqrt(double(a.head_dim));
    const double unit = a.dtype == HEED_F16 ? 0x1p-10 : a.dtype == HEED_BF16 ? 0x1p-7 : 0;
    return std::ldexp((a.head_dim / 2.0 + a.kv_len / 2.0) * (1 + logit) * largest(a.v), -24) + unit * largest(a.v);
}

Attention random_attention(const Row &row, Rng *rng) {
    Shape shape = row.shape();
    shape.batch = rng->between(1, 2);
    shape.num_kv_heads = rng->between(1, 2);
    shape.num_heads = shape.num_kv_heads * rng->between(1, 5);
    shape.q_len = row.decode() ? rng->between(1, 3) : rng->between(1, 70);
    shape.kv_len = rng->between(1, 700);
    Attention a = row.attention(shape, Data::normal, rng->bits());
    a.position = rng->chance(0.5) ? HEED_BOTTOM_RIGHT : HEED_TOP_LEFT;
    a.causal = rng->chance(0.5);
    if (rng->chance(0.3)) a.window_left = rng->below(200);
    if (rng->chance(0.3)) a.window_right = rng->below(50);
    if (rng->chance(0.5)) {
        for (int32_t b = 0; b < a.batch; b++) a.kv_lens.push_back(rng->between(0, a.kv_len));
    }
    if (row.has(HEED_FEATURE_BIAS)) {
        add_bias(&a, {0, rng->chance(0.5) ? 1 : 0, 0, 0}, rng);
        add_mask(&a, {1, 0, rng->chance(0.5) ? 1 : 0, 0}, 0.7, rng);
    }
    return a;
}

class Schedule : public testing::TestWithParam<Row> {};

TEST_P(Schedule, EqualsTheDefaultSchedule) {
    Rng rng(7);
    for (int n = 0; n < 12; n++) {
        const Attention a = random_attention(GetParam(), &rng);
        Call tuned(a, GetParam().options());
        Call plain(a, GetParam().options().with_kernel(GetParam().name + default_suffix));
        ASSERT_EQ(tuned.run(), HEED_OK) << heed_last_error();
        ASSERT_EQ(plain.run(), HEED_OK) << heed_last_error();
        ASSERT_EQ(tuned.kernel() + default_suffix, plain.kernel());
        const std::vector<float> got = tuned.out(), expected = plain.out();
        double worst = 0;
        for (size_t i = 0; i < got.size(); i++) worst = std::max(worst, std::fabs(double{got[i]} - expected[i]));
        EXPECT_LE(worst, allowed(a)) << "case " << n;
        const std::vector<float> lse = tuned.lse(), expected_lse = plain.lse();
        for (size_t i = 0; i < lse.size(); i++) {
            if (std::isinf(expected_lse[i])) {
                EXPECT_EQ(lse[i], expected_lse[i]) << "case " << n << ", row " << i;
            } else {
                EXPECT_LE(std::fabs(double{lse[i]} - expected_lse[i]), allowed(a) * (1 + std::fabs(double{lse[i]})));
            }
        }
    }
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
