// Sinks, softcap, ALiBi and biases of the I/O type: alone, with each other, with causal, windows and masks.
#include <cmath>

#include "tests/support/expect.h"

namespace heed_test {
namespace {

constexpr float inf_value = std::numeric_limits<float>::infinity();

class Modifiers : public KernelTest {
protected:
    Attention attention(int32_t q_len, int32_t kv_len) const { return grouped(q_len, kv_len, 81); }

    // The problem as it is, causal, in a window with lengths, and with a mask and bias where the kernel has them.
    void expect_in_company(const Attention &a) {
        expect_correct(a, options());
        Attention b = a;
        b.causal = true;
        b.position = HEED_BOTTOM_RIGHT;
        expect_correct(b, options());
        b.window_left = 40;
        b.causal = false;
        b.kv_lens = {a.kv_len, a.kv_len / 2};
        expect_correct(b, options());
        Rng rng(82);
        if (kernel().has(HEED_FEATURE_MASK)) add_mask(&b, {1, 0, 0, 0}, 0.7, &rng);
        if (kernel().has(HEED_FEATURE_BIAS)) add_bias(&b, {0, 1, 0, 0}, &rng);
        if (b.mask.used || b.bias.used) expect_correct(b, options());
    }

    static std::vector<std::array<int32_t, 4>> broadcasts() {
        std::vector<std::array<int32_t, 4>> result;
        for (int32_t bits = 0; bits < 16; bits++) {
            result.push_back({bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1});  // 0 is the full extent
        }
        return result;
    }
};

class Sinks : public Modifiers {};

TEST_P(Sinks, InCompany) {
    for (const int32_t q_len : {1, 13}) {
        Attention a = attention(q_len, block() + 37);
        a.sink = {0.5f, -3, 4, 0};
        expect_in_company(a);
    }
}

TEST_P(Sinks, MinusInfinityIsNone) {
    Attention a = attention(5, block() + 37);
    a.causal = true;
    a.position = HEED_EXPLICIT;
    a.q_offsets = {-2, block()};  // rows without keys too
    const Result without = expect_correct(a, options());
    a.sink.assign(4, -inf_value);
    expect_same_bits(expect_correct(a, options()), without);
}

TEST_P(Sinks, RowsWithoutKeys) {
    Attention a = attention(6, block() + 5);
    a.sink = {0.5f, -3, 4, 0};
    a.kv_lens = {0, 3};
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    expect_correct(a, options());
    const Attention empty = [&] {
        Attention none = attention(6, 0);
        none.sink = a.sink;
        return none;
    }();
    expect_correct(empty, options());
}

// Far above and far below the logits.
TEST_P(Sinks, ExtremeSinks) {
    Attention a = attention(5, block() + 5);
    a.sink = {80, -80, 1e4f, -1e4f};
    expect_close(a, expect_runs(a, options()), {false, false});
}

// Added once, however the keys are split.
TEST_P(Sinks, Splits) {
    Attention a = attention(2, 3 * block() + 5);
    a.sink = {2, 1, 0, 3};
    for (const int32_t num_splits : some<int32_t>({1, 2, 7, 32})) {
        CallOptions split = options();
        split.num_splits = num_splits;
        expect_correct(a, split);
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Sinks, testing::ValuesIn(supported_kernels()), kernel_test_name);

class Softcaps : public Modifiers {};

TEST_P(Softcaps, InCompany) {
    for (const float softcap : some<float>({0.5f, 5, 50})) {
        Attention a = attention(13, block() + 37);
        a.softcap = softcap;
        expect_in_company(a);
    }
}

TEST_P(Softcaps, WithSinkAfterTheCap) {
    Attention a = attention(13, block() + 37);
    a.softcap = 2;
    a.sink = {5, -5, 3, 0};
    expect_in_company(a);
}

TEST_P(Softcaps, CapsFarFromTheLogits) {
    Attention a = attention(5, block() + 5);
    a.softcap = 1e30f;
    expect_correct(a, options());
    a.softcap = 1e-3f;
    a.scale = 1e3f;
    expect_correct(a, options());
}

TEST_P(Softcaps, VisibleKeys) {
    Attention a = attention(9, block() + 37);
    a.softcap = 3;
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    expect_exact_set(a, options());
}

// Kernels on CUDA refuse it.
TEST_P(Softcaps, TemperatureBeforeTheCap) {
    Attention a = attention(13, block() + 37);
    a.temperature = {0.5f, 1.2f, -0.8f, 1};
    a.temperature_growth = 0.1f;
    a.temperature_interval = 4;
    a.temperature_shift = 1;
    if (test_device() == HEED_CUDA) {
        heed_problem problem = make_problem(a, options());
        heed_plan *plan = nullptr;
        EXPECT_EQ(heed_plan_create(&problem, &plan), HEED_UNSUPPORTED);
        EXPECT_THAT(heed_last_error(), testing::HasSubstr("temperature_growth is 0.1"));
        return;
    }
    expect_in_company(a);
    a.softcap = 2;
    expect_in_company(a);
    a.temperature.clear();
    expect_in_company(a);
    a.temperature = {0.5f, 1.2f, -0.8f, 1};
    a.temperature_growth = 0;
    expect_in_company(a);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Softcaps, testing::ValuesIn(kernels_with(HEED_FEATURE_SOFTCAP)), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Softcaps);

class Alibi : public Modifiers {
protected:
    Attention sloped(int32_t q_len, int32_t kv_len, bool symmetric) const {
        Attention a = attention(q_len, kv_len);
        add_alibi(&a, {0.05f, 0.025f, -0.03f, 0}, symmetric);
        return a;
    }
};

TEST_P(Alibi, InCompany) {
    for (const bool symmetric : {false, true}) {
        expect_in_company(sloped(13, block() + 37, symmetric));
    }
}

TEST_P(Alibi, EveryPosition) {
    for (const bool symmetric : {false, true}) {
        for (const int32_t q_len : {1, 33}) {
            Attention a = sloped(q_len, 20, symmetric);  // fewer and more queries than keys
            a.position = HEED_TOP_LEFT;
            expect_correct(a, options());
            a.position = HEED_BOTTOM_RIGHT;
            a.kv_lens = {20, 7};
            expect_correct(a, options());
            a.position = HEED_EXPLICIT;
            a.q_offsets = {-5, 90};
            expect_correct(a, options());
        }
    }
}

TEST_P(Alibi, VarlenPositionsAreTheSequencesOwn) {
    Attention a = sloped(20, block() + 9, true);
    a.position = HEED_BOTTOM_RIGHT;
    a.q_lens = {20, 3};
    a.kv_lens = {block() + 9, 11};
    for (const heed_kv_storage kv : {HEED_KV_VARLEN, kernel().info.kv_storage}) {
        expect_correct(a, options().with_storage(HEED_Q_VARLEN, kv));
    }
}

// Slopes of real models: the far keys have no weight.
TEST_P(Alibi, SteepSlopes) {
    Attention a = attention(9, 2 * block() + 37);
    a.alibi_slopes = {0.5f, 0.25f, 0.0625f, 0.00390625f};
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    expect_correct(a, options(), {false, true});
}

TEST_P(Alibi, SlopesOfZeroAreOff) {
    Attention a = attention(9, block() + 37);
    const Result off = expect_correct(a, options());
    a.alibi_slopes.assign(4, 0);
    expect_close(a, expect_correct(a, options()));
    expect_close(a, off);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Alibi, testing::ValuesIn(kernels_with(HEED_FEATURE_ALIBI)), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Alibi);

class BiasTypes : public Modifiers {};

TEST_P(BiasTypes, EveryBroadcast) {
    Rng rng(83);
    for (const heed_dtype bias_dtype : {HEED_F32, kernel().info.dtype}) {
        for (const auto &shape : some(broadcasts(), 4)) {
            Attention a = attention(7, block() + 9);
            a.bias_dtype = bias_dtype;
            add_bias(&a, shape, &rng);
            expect_correct(a, options());
        }
    }
}

TEST_P(BiasTypes, HiddenKeys) {
    Rng rng(84);
    Attention a = attention(7, block() + 9);
    a.bias_dtype = kernel().info.dtype;
    add_bias(&a, {0, 0, 0, 0}, &rng);
    for (float &x : a.bias.data) {
        if (rng.chance(0.5)) x = -inf_value;
    }
    expect_correct(a, options());
    for (float &x : a.bias.data) x = x == -inf_value ? x : 0;
    expect_exact_set(a, options());
    expect_correct(a, options());
}

INSTANTIATE_TEST_SUITE_P(Kernels, BiasTypes, testing::ValuesIn(kernels_with(HEED_FEATURE_BIAS)), kernel_test_name);

}  // namespace
}  // namespace heed_test
