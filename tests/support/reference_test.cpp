// The oracle and the random words of dropout, against values worked out by hand and known answers.
#include <cmath>

#include "runtime/reference/philox.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

constexpr float inf_value = std::numeric_limits<float>::infinity();

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

// Known answers of Random123.
TEST(Philox, KnownAnswers) {
    using Words = std::array<uint32_t, 4>;
    EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    const uint64_t ones = ~uint64_t{0};
    EXPECT_EQ(philox(ones, ones, ones), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(philox(0x85a308d3243f6a88, 0x0370734413198a2e, 0x299f31d0a4093822),
              (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, DropsBelowTheThreshold) {
    int32_t kept = 0;
    for (uint64_t e = 0; e < 4096; e++) {
        EXPECT_TRUE(dropout_keeps(e, 0, 7, 9));
        EXPECT_FALSE(dropout_keeps(e, 1, 7, 9));
        kept += dropout_keeps(e, 0.25f, 7, 9);
    }
    EXPECT_NEAR(kept, 3072, 4 * 28);  // 4 sigma
    // Word e & 3 of counter e >> 2.
    EXPECT_EQ(dropout_keeps(6, 0.5f, 7, 9), philox(1, 9, 7)[2] >= 0x80000000u);
}

TEST(Reference, DropoutByHand) {
    Attention a = quarters();
    a.dropout_p = 0.5f;
    for (a.dropout_seed = 0; a.dropout_seed < 32; a.dropout_seed++) {
        const bool first = dropout_keeps(0, 0.5f, a.dropout_seed, 0),
                   second = dropout_keeps(1, 0.5f, a.dropout_seed, 0);
        const Reference ref = compute_reference(a, false);
        EXPECT_FLOAT_EQ(static_cast<float>(ref.out[0]), (first ? 2 * 8 * 0.25f : 0) + (second ? -2 * 4 * 0.75f : 0));
        EXPECT_FLOAT_EQ(static_cast<float>(ref.lse[0]), std::log(4.0f));
        EXPECT_EQ(ref.num_kept[0], first + second);
        EXPECT_EQ(ref.max_v[0], 16);
    }
}

TEST(Reference, ValuesOfDroppedKeysChangeNothing) {
    Attention a = quarters();
    a.dropout_p = 0.5f;
    a.rounds_weights = true;
    while (dropout_keeps(0, 0.5f, a.dropout_seed, 0) || !dropout_keeps(1, 0.5f, a.dropout_seed, 0)) a.dropout_seed++;
    const Reference finite = compute_reference(a, false);
    for (const float dropped : {NAN, INFINITY}) {
        a.v[0] = dropped;
        const Reference ref = compute_reference(a, false);
        EXPECT_EQ(ref.out, finite.out);
        EXPECT_EQ(ref.weight_rounding, finite.weight_rounding);
    }
}

// Sequences of 3, 0 and 1 queries on 2, 1 and 4 keys.
TEST(Reference, QueryLengthsAndPositions) {
    Attention a = make_attention({3, 1, 1, 3, 4, 4, 4});
    a.q_lens = {3, 0, 1};
    a.kv_lens = {2, 1, 4};
    a.position = HEED_BOTTOM_RIGHT;
    a.causal = true;
    const Reference ref = compute_reference(a, false);
    EXPECT_EQ(ref.num_visible, (std::vector<int32_t>{0, 1, 2, 0, 0, 0, 4, 0, 0}));
    add_alibi(&a, {1}, true);
    std::fill(a.q.begin(), a.q.end(), 0.0f);
    const float last = static_cast<float>(compute_reference(a, false).lse[6]);  // distances 3, 2, 1, 0
    EXPECT_FLOAT_EQ(last, std::log(1 + std::exp(-1.0f) + std::exp(-2.0f) + std::exp(-3.0f)));
}

TEST(Reference, ComputesOnValuesAsTheTypesHoldThem) {
    Attention a = quarters();
    a.dtype = HEED_BF16;
    a.v = {8.01f, -4.01f};
    EXPECT_FLOAT_EQ(static_cast<float>(compute_reference(a, false).max_v[0]), 8);
    a = quarters();
    a.int8_kv = true;
    a.v = {NAN, 1};
    EXPECT_TRUE(std::isnan(compute_reference(a, false).out[0]));
}

TEST(Reference, LogitsOfMinusInfinityWeighNothing) {
    Attention a = quarters();
    a.k[0] = -INFINITY;
    Reference ref = compute_reference(a, false);
    EXPECT_EQ(ref.out[0], static_cast<double>(a.v[1]));
    std::fill(a.k.begin(), a.k.end(), -INFINITY);
    ref = compute_reference(a, false);
    EXPECT_EQ(ref.out[0], 0);
    EXPECT_EQ(ref.lse[0], -INFINITY);
    a.v[0] = NAN;
    EXPECT_TRUE(std::isnan(compute_reference(a, false).out[0]));
}

}  // namespace
}  // namespace heed_test
