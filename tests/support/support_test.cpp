// The oracle, the tolerances and the guards, against values worked out by hand.
#include <cmath>

#include "element.h"
#include "expect.h"

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

// Logits 0 and ln 3: weights 1/4 and 3/4.
Attention quarters() {
    Attention a = make_attention({1, 1, 1, 1, 2, 1, 1}, Data::zero);
    a.scale = 1;
    a.q = {1};
    a.k = {0, std::log(3.0f)};
    a.v = {8, -4};
    return a;
}

TEST(Reference, ByHand) {
    const Reference ref = compute_reference(quarters(), true);
    EXPECT_FLOAT_EQ(static_cast<float>(ref.out[0]), -1);
    EXPECT_FLOAT_EQ(static_cast<float>(ref.lse[0]), std::log(4.0f));
    EXPECT_FLOAT_EQ(static_cast<float>(ref.max_logit[0]), 4 * std::log(3.0f));  // one product: 4 times itself
    EXPECT_EQ(ref.max_v[0], 8);
    EXPECT_EQ(ref.num_visible[0], 2);
}

TEST(Reference, SinkAlibiAndSoftcapByHand) {
    Attention a = quarters();
    a.sink = {std::log(4.0f)};
    Reference ref = compute_reference(a, false);
    EXPECT_FLOAT_EQ(static_cast<float>(ref.out[0]), -0.5f);  // half the weight is the sink's
    EXPECT_FLOAT_EQ(static_cast<float>(ref.lse[0]), std::log(8.0f));
    a.sink.clear();
    a.alibi_slopes = {-std::log(3.0f)};  // undoes the difference: j - p(0) is 0 and 1
    ref = compute_reference(a, false);
    EXPECT_FLOAT_EQ(static_cast<float>(ref.out[0]), 2);
    a.alibi_slopes.clear();
    a.softcap = 1;
    ref = compute_reference(a, false);
    const double weight = std::exp(std::tanh(std::log(3.0)));
    EXPECT_FLOAT_EQ(static_cast<float>(ref.out[0]), static_cast<float>((8 - 4 * weight) / (1 + weight)));
}

TEST(Reference, EmptyRow) {
    Attention a = quarters();
    a.kv_lens = {0};
    const Reference ref = compute_reference(a, false);
    EXPECT_EQ(ref.out[0], 0);
    EXPECT_EQ(ref.lse[0], -inf_value);
    EXPECT_EQ(ref.num_visible[0], 0);
}

class Judgement : public testing::Test {
protected:
    Judgement() : a(make_attention({1, 2, 1, 4, 20, 8, 8})), ref(compute_reference(a, false)) {
        for (const double x : ref.out) out.push_back(static_cast<float>(x));
        for (const double x : ref.lse) lse.push_back(static_cast<float>(x));
    }
    bool good() const { return judge(a, ref, out, lse).ok; }

    Attention a;
    Reference ref;
    std::vector<float> out, lse;
};

TEST_F(Judgement, AcceptsTheReference) { EXPECT_TRUE(good()) << judge(a, ref, out, lse).complaint; }

TEST_F(Judgement, FindsOneWrongElement) {
    const double bound = out_bound(a, ref.out[5], ref.max_logit[0], ref.max_v[0]);
    out[5] += static_cast<float>(0.5 * bound);
    EXPECT_TRUE(good());
    out[5] += static_cast<float>(1.5 * bound);
    EXPECT_FALSE(good());
    out[5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(good());
}

TEST_F(Judgement, FindsAWrongLse) {
    lse[3] *= std::log2(std::exp(1.0f));
    EXPECT_FALSE(good());
    lse[3] = inf_value;
    EXPECT_FALSE(good());
}

TEST_F(Judgement, AsksForNanWhereTheReferenceHasIt) {
    ref.out[5] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_FALSE(good());
    out[5] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(good());
}

TEST_F(Judgement, EmptyRowsAreExact) {
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

TEST_F(Judgement, MistrustsCasesThatProveLittle) {
    EXPECT_TRUE(good());
    for (size_t n = 0; n < a.q.size(); n += 8) a.q[n] = 1;
    a.k[0] = 1000;  // one key has all the weight
    ref = compute_reference(a, false);
    const Verdict blind = judge(a, ref, {ref.out.begin(), ref.out.end()}, {});
    EXPECT_NE(blind.complaint.find("MISTRUSTED"), std::string::npos) << blind.complaint;
    std::fill(a.v.begin(), a.v.end(), 0.0f);
    ref = compute_reference(a, false);
    const Verdict zero = judge(a, ref, {ref.out.begin(), ref.out.end()}, {});
    EXPECT_NE(zero.complaint.find("mostly zero"), std::string::npos) << zero.complaint;
}

TEST(ExactSet, NamesTheVisibleKeys) {
    Attention a = make_attention({1, 1, 1, 6, 40, 4, 4});
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    make_exact_set(&a);
    const Reference ref = compute_reference(a, false);
    const std::vector<float> out(ref.out.begin(), ref.out.end());
    std::vector<int32_t> all(37);
    for (int32_t j = 0; j < 37; j++) all[static_cast<size_t>(j)] = j;
    EXPECT_EQ(named_keys(a, out.data() + a.out_index(0, 2, 0), 37), all);
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

TEST(Element, Rounding) {
    EXPECT_EQ(to_bits(HEED_F16, 1), 0x3c00);
    EXPECT_EQ(to_bits(HEED_F16, -2), 0xc000);
    EXPECT_EQ(to_bits(HEED_F16, 65519), 0x7bff);
    EXPECT_EQ(to_bits(HEED_F16, 65520), 0x7c00);
    EXPECT_EQ(to_bits(HEED_F16, 0x1p-24f), 1);
    EXPECT_EQ(to_bits(HEED_F16, 0x1p-25f), 0);
    EXPECT_EQ(to_bits(HEED_F16, 0x1.002p0f), 0x3c00);  // halfway, to even
    EXPECT_EQ(to_bits(HEED_F16, 0x1.006p0f), 0x3c02);
    EXPECT_EQ(to_bits(HEED_BF16, 0x1.01p0f), 0x3f80);
    EXPECT_EQ(to_bits(HEED_BF16, 0x1.03p0f), 0x3f82);
    EXPECT_EQ(to_bits(HEED_BF16, -inf_value), 0xff80);
    for (int32_t bits = 0; bits < 0x7c00; bits++) {
        ASSERT_EQ(to_bits(HEED_F16, from_bits(HEED_F16, static_cast<uint16_t>(bits))), bits);
    }
}

}  // namespace
}  // namespace heed_test
