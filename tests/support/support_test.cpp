// Visible keys, verdicts and guards, against values worked out by hand.
#include <cmath>

#include "runtime/reference/element.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

constexpr float inf_value = std::numeric_limits<float>::infinity();

std::string seen(const Attention &a, int32_t i) {
    std::string text;
    for (const uint8_t visible : visible_keys(a, 0, 0, i)) text += visible ? 'x' : '.';
    return text;
}

TEST(VisibleKeys, ByHand) {
    Attention a = make_attention({1, 1, 1, 3, 5, 4, 4});
    EXPECT_EQ(seen(a, 1), "xxxxx");
    a.causal = true;
    EXPECT_EQ(seen(a, 1), "xx...");
    a.position = HEED_BOTTOM_RIGHT;
    EXPECT_EQ(seen(a, 0), "xxx..");
    EXPECT_EQ(seen(a, 2), "xxxxx");
    a.window_left = 1;
    EXPECT_EQ(seen(a, 1), "..xx.");
    a.causal = false;
    a.window_right = 0;
    EXPECT_EQ(seen(a, 1), "..xx.");
    a.window_right = 1;
    EXPECT_EQ(seen(a, 1), "..xxx");
    a.kv_lens = {4};  // moves p(i) by one
    EXPECT_EQ(seen(a, 1), ".xxx.");
    a.position = HEED_EXPLICIT;
    a.q_offsets = {-2};
    EXPECT_EQ(seen(a, 0), ".....");
    EXPECT_EQ(seen(a, 1), "x....");
    a.q_offsets = {100};
    EXPECT_EQ(seen(a, 1), ".....");
}

TEST(VisibleKeys, MaskAndBiasByHand) {
    Attention a = make_attention({1, 1, 1, 1, 4, 4, 4});
    a.mask = {true, {1, 1, 1, 4}, {1, 0, 7, 0}};
    EXPECT_EQ(seen(a, 0), "x.x.");
    a.mask_true_hides = true;
    EXPECT_EQ(seen(a, 0), ".x.x");
    a.bias = {true, {1, 1, 1, 4}, {0, -inf_value, 0, std::numeric_limits<float>::lowest()}};
    EXPECT_EQ(seen(a, 0), "...x");
}

class Verdicts : public testing::Test {
protected:
    Verdicts() : a(make_attention({1, 2, 1, 4, 20, 8, 8})), ref(compute_reference(a, false)) {
        for (const double x : ref.out) out.push_back(static_cast<float>(x));
        for (const double x : ref.lse) lse.push_back(static_cast<float>(x));
    }
    bool good() const { return verdict_of(a, ref, out, lse).ok; }

    Attention a;
    Reference ref;
    std::vector<float> out, lse;
};

TEST_F(Verdicts, AcceptsTheReference) { EXPECT_TRUE(good()) << verdict_of(a, ref, out, lse).complaint; }

TEST_F(Verdicts, FindsOneWrongElement) {
    const double bound = out_bound(a, ref.out[5], ref.max_logit[0], ref.max_v[0], 0);
    out[5] += static_cast<float>(0.5 * bound);
    EXPECT_TRUE(good());
    out[5] += static_cast<float>(1.5 * bound);
    EXPECT_FALSE(good());
    out[5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(good());
}

TEST_F(Verdicts, FindsAWrongLse) {
    lse[3] *= std::log2(std::exp(1.0f));
    EXPECT_FALSE(good());
    lse[3] = inf_value;
    EXPECT_FALSE(good());
}

TEST_F(Verdicts, AsksForNanWhereTheReferenceHasIt) {
    ref.out[5] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(good());
    out[5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(good());
}

TEST_F(Verdicts, EmptyRowsAreExact) {
    a.kv_lens = {0};
    ref = compute_reference(a, false);
    std::fill(out.begin(), out.end(), 0.0f);
    std::fill(lse.begin(), lse.end(), -inf_value);
    EXPECT_TRUE(good());
    out[7] = -0.0f;
    EXPECT_FALSE(good());
    out[7] = 0;
    lse[1] = inf_value;
    EXPECT_FALSE(good());
}

TEST(OneKey, OfCodesIsTheNearestOrANeighbourThatIsAsNear) {
    Attention a = make_attention({1, 1, 1, 1, 1, 8, 8}, Data::normal, 1, HEED_BF16, true);
    Reference ref = compute_reference(a, false);
    const auto good = [&](double between, float got) {
        ref.out[3] = between;
        std::vector<float> out(ref.out.begin(), ref.out.end());
        for (float &x : out) x = round_to(HEED_BF16, x);
        out[3] = got;
        return verdict_of(a, ref, out, {}, Trust{false, false}).ok;
    };
    a.rounds_weights = true;
    constexpr float below = 0.375F, above = 0.376953125F;
    constexpr double between = 0.3759765625;
    EXPECT_TRUE(good(between, below) && good(between, above));
    EXPECT_TRUE(good(between - 0x1p-15, below) && good(between + 0x1p-15, above));
    EXPECT_FALSE(good(between - 0x1p-15, above) || good(between + 0x1p-15, below));
    a.rounds_weights = false;
    EXPECT_TRUE(good(between, below));
    EXPECT_FALSE(good(between, above));
}

TEST_F(Verdicts, MistrustsCasesThatProveLittle) {
    EXPECT_TRUE(good());
    for (size_t n = 0; n < a.q.size(); n += 8) a.q[n] = 1;
    a.k[0] = 1000;  // one key has all the weight
    ref = compute_reference(a, false);
    const Verdict blind = verdict_of(a, ref, {ref.out.begin(), ref.out.end()}, {});
    EXPECT_NE(blind.complaint.find("MISTRUSTED"), std::string::npos) << blind.complaint;
    std::fill(a.v.begin(), a.v.end(), 0.0f);
    ref = compute_reference(a, false);
    const Verdict zero = verdict_of(a, ref, {ref.out.begin(), ref.out.end()}, {});
    EXPECT_NE(zero.complaint.find("mostly zero"), std::string::npos) << zero.complaint;
}

TEST(ExactSet, NamesTheVisibleKeys) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const bool int8_kv : {false, true}) {
            Attention a = make_attention({1, 1, 1, 300, 300, 4, 4}, Data::normal, 1, dtype, int8_kv);
            a.causal = true;
            for (int32_t first = 0; first < a.kv_len; first += keys_per_run(a)) {
                make_exact_set(&a, first);
                const Reference ref = compute_reference(a, false);
                for (int32_t i = 0; i < a.q_len; i++) {
                    std::vector<float> out;
                    for (int32_t d = 0; d < 4; d++) {
                        out.push_back(round_to(dtype, static_cast<float>(ref.out[static_cast<size_t>(4 * i + d)])));
                    }
                    std::vector<int32_t> expected;
                    for (int32_t j = first; j < std::min(i + 1, first + keys_per_run(a)); j++) expected.push_back(j);
                    ASSERT_EQ(named_keys(a, out.data(), 1.0 / (i + 1), first), expected)
                        << dtype_name(dtype) << " " << i;
                }
            }
        }
    }
}

TEST(Guard, FaultsOnBothSides) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const GuardedBuffer rear(20, Flush::rear), front(20, Flush::front);
    EXPECT_DEATH(static_cast<volatile char *>(rear.data())[20] = 0, "");
    EXPECT_DEATH(static_cast<volatile char *>(front.data())[-1] = 0, "");
    EXPECT_TRUE(rear.slack_intact());
    static_cast<volatile char *>(rear.data())[-1] = 0;
    EXPECT_FALSE(rear.slack_intact());
}

// Every type and modifier at once.
class Types : public testing::TestWithParam<std::tuple<heed_dtype, bool>> {};

TEST_P(Types, RoundedReferenceIsAcceptedAndARoughOneIsNot) {
    const auto &[dtype, int8_kv] = GetParam();
    Attention a = make_attention({2, 4, 2, 9, 150, 64, 64}, Data::normal, 3, dtype, int8_kv);
    a.softcap = 3;
    a.alibi_slopes = {0.03f, -0.02f, 0.01f, 0};
    a.sink = {0.1f, -inf_value, 2, 0};
    a.dropout_p = 0.3f;
    const Reference ref = compute_reference(a, true);
    std::vector<float> out, lse;
    for (const double x : ref.out) out.push_back(round_to(dtype, static_cast<float>(x)));
    for (const double x : ref.lse) lse.push_back(static_cast<float>(x));
    const Verdict verdict = verdict_of(a, ref, out, lse);
    EXPECT_TRUE(verdict.ok) << verdict.complaint;
    EXPECT_LE(verdict.out_ratio, 1);
    if (dtype == HEED_F32) {  // results that were rounded to 16 bits on their way
        for (float &x : out) x = round_to(HEED_F16, x);
    } else {
        for (float &x : out) x = round_to(HEED_BF16, x + 0x1p-7f * x);
    }
    EXPECT_FALSE(verdict_of(a, ref, out, lse).ok);
}

INSTANTIATE_TEST_SUITE_P(All, Types, testing::Combine(testing::Values(HEED_F32, HEED_F16, HEED_BF16), testing::Bool()));

}  // namespace
}  // namespace heed_test
