// Dropout: one mask for all kernels, storages, splits and threads, which the reference makes word by word.
#include <cmath>

#include "tests/support/expect.h"

namespace heed_test {
namespace {

class Dropout : public KernelTest {
protected:
    Attention attention(int32_t q_len, int32_t kv_len, float p) const {
        Attention a = grouped(q_len, kv_len, 71);
        a.dropout_p = p;
        a.dropout_seed = 0x123456789abcdef0;
        a.dropout_offset = 3;
        return a;
    }
};

TEST_P(Dropout, MaskIsTheReferences) {
    for (const float p : some<float>({0.1f, 0.5f, 0.75f})) {
        for (const int32_t q_len : {1, 19}) {
            Attention a = attention(q_len, block() + 37, p);
            expect_exact_set(a, options());
            a.causal = true;
            a.position = HEED_BOTTOM_RIGHT;
            a.kv_lens = {a.kv_len - 2, 21};  // the mask is that of the capacity
            expect_exact_set(a, options());
        }
    }
}

TEST_P(Dropout, EverySeedAndOffset) {
    const uint64_t ones = ~uint64_t{0}, high = uint64_t{1} << 63;
    const std::vector<std::array<uint64_t, 2>> keys = {{0, 0},       {1, 0},       {0, 1},
                                                       {ones, high}, {high, ones}, {1u << 31, 1}};
    for (const auto &[seed, offset] : some(keys, 3)) {
        Attention a = attention(3, block() + 5, 0.5f);
        a.dropout_seed = seed;
        a.dropout_offset = offset;
        expect_exact_set(a, options());
    }
}

// e & 3 of a row's first key takes every value.
TEST_P(Dropout, LengthsThatAreNoMultipleOfFour) {
    for (const int32_t kv_len : {1, 2, 3, 5, 17}) expect_exact_set(attention(7, kv_len, 0.5f), options());
}

TEST_P(Dropout, Values) {
    for (const float p : some<float>({0.1f, 0.5f, 0.9f})) {
        Attention a = attention(19, block() + 37, p);
        expect_correct(a, options());
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        a.window_left = 60;
        expect_correct(a, options());
    }
}

TEST_P(Dropout, StoragesSplitsAndThreads) {
    Attention a = attention(3, 2 * block() + 9, 0.5f);
    a.kv_lens = {2 * block() + 1, block()};
    const Result one = expect_correct(a, options());
    expect_same_bits(expect_runs(a, options().with_threads(3)), one);
    for (const int32_t num_splits : some<int32_t>({1, 3, 7})) {
        CallOptions split = options();
        split.num_splits = num_splits;
        expect_correct(a, split);
        expect_exact_set(a, split);
    }
    expect_same_bits(expect_runs(a, options().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN)), one);
    a.q_lens = {1, 3};  // the mask is that of the longest lengths
    expect_exact_set(a, options().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN));
    expect_exact_set(a, options().with_storage(HEED_Q_VARLEN, kernel().info.kv_storage));
}

TEST_P(Dropout, ZeroIsOff) {
    Attention a = attention(9, block() + 37, 0);
    const Result with_seed = expect_correct(a, options());
    a.dropout_seed = a.dropout_offset = 0;
    expect_same_bits(expect_correct(a, options()), with_seed);
}

TEST_P(Dropout, OneLeavesNothingButLse) {
    Attention a = attention(9, block() + 37, 1);
    const Result none = expect_correct(a, options());
    for (const float x : none.out) ASSERT_TRUE(x == 0 && !std::signbit(x)) << x;
    a.dropout_p = 0;
    expect_same_bits(none.lse, expect_runs(a, options()).lse, "lse");
}

TEST_P(Dropout, LseIsThatWithoutDropout) {
    Attention a = attention(9, block() + 37, 0.4f);
    const Result dropped = expect_correct(a, options());
    a.dropout_p = 0;
    expect_same_bits(dropped.lse, expect_runs(a, options()).lse, "lse");
}

TEST_P(Dropout, OneKeyKeptOrDropped) {
    Attention a = attention(33, 1, 0.5f);
    expect_correct(a, options());
    int32_t kept = 0;
    for (int32_t i = 0; i < a.q_len; i++) kept += dropout_keeps(a, 1, 2, i, 0);
    EXPECT_GT(kept, 0);
    EXPECT_LT(kept, a.q_len);
}

TEST_P(Dropout, WithEverythingTheKernelServes) {
    Rng rng(72);
    Attention a = attention(9, block() + 37, 0.3f);
    a.sink = {0.5f, -1, 1, 0};
    a.kv_lens = {block() + 30, 13};
    if (kernel().has(HEED_FEATURE_MASK)) add_mask(&a, {0, 1, 0, 0}, 0.7, &rng);
    if (kernel().has(HEED_FEATURE_BIAS)) add_bias(&a, {1, 0, 0, 0}, &rng);
    if (kernel().has(HEED_FEATURE_SOFTCAP)) a.softcap = 5;
    if (kernel().has(HEED_FEATURE_ALIBI)) a.alibi_slopes = {0.02f, 0.01f, -0.01f, 0};
    expect_correct(a, options());
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    expect_correct(a, options());
}

INSTANTIATE_TEST_SUITE_P(Kernels, Dropout, testing::ValuesIn(kernels_with(HEED_FEATURE_DROPOUT)), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Dropout);

}  // namespace
}  // namespace heed_test
