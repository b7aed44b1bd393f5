// Logits, biases and sinks up to the largest float: each is what it says, whatever base a kernel's exponentials have.
#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

constexpr float most = std::numeric_limits<float>::max();

class HugeLogits : public Adversarial {
protected:
    // Key j has the logit logits[j % 2] = scale * q . k; each a multiple of scale that every type holds.
    Attention with_logits(int32_t q_len, float scale, std::array<float, 2> multiples) const {
        Attention a = normal(q_len, block() + 9);
        a.scale = scale;
        std::fill(a.q.begin(), a.q.end(), 0.0f);
        for (size_t at = 0; at < a.q.size(); at += 64) a.q[at] = 1;
        std::fill(a.k.begin(), a.k.end(), 0.0f);
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t j = 0; j < a.kv_len; j++) {
                for (int32_t g = 0; g < a.num_kv_heads; g++)
                    a.k_row(b, j, g)[0] = multiples[static_cast<size_t>(j % 2)];
            }
        }
        hold_in_types(&a);
        return a;
    }
    // As for logits of 0: whatever their size, weights depend on differences only.
    void expect_reference(const Attention &a) {
        const Result result = expect_runs(a, options());
        if (result.status != HEED_OK) return;
        const auto ref = reference_of(a);
        const double max_v = *std::max_element(ref->max_v.begin(), ref->max_v.end());
        for (size_t n = 0; n < ref->out.size(); n++) {
            const double bound = out_bound(a, ref->out[n], 0, max_v, ref->weight_rounding[n]);
            const auto got = static_cast<double>(result.out[n]);
            ASSERT_LE(std::fabs(got), max_v * (1 + 0x1p-7)) << n;  // not so for NaN
            if (rounds_alike()) {
                ASSERT_LE(std::fabs(got - ref->out[n]), bound) << n;
            }
        }
        for (size_t r = 0; r < result.lse.size(); r++) {
            const double size = std::fabs(ref->lse[r]);
            const double expected = std::copysign(std::isinf(size) ? size : std::min<double>(size, most), ref->lse[r]);
            if (std::isinf(size) && expected == result.lse[r]) continue;
            ASSERT_LE(std::fabs(static_cast<double>(result.lse[r]) - expected), lse_bound(a, expected, 0)) << r;
        }
    }
    // Equal logits are equal numbers, whatever their size. Not in matrix tiles of kernels that change logits, whose
    // chains of blocks may round one logit in two ways, a unit apart.
    bool rounds_alike() const { return kernel().info.isa != HEED_AMX || !kernel().has(HEED_FEATURE_BIAS); }
    static constexpr std::array<float, 6> sizes = {2.3e38f, 2.4e38f, 3e38f, -2.4e38f, -3e38f, -most};
};

class HugeScores : public HugeLogits {};

TEST_P(HugeLogits, EqualOnes) {
    for (const float size : sizes) expect_reference(with_logits(3, size, {1, 1}));
    expect_reference(with_logits(3, most, {1, 1}));
}

TEST_P(HugeLogits, TheLargestWins) {
    for (const float size : sizes) {
        SCOPED_TRACE(size);
        const auto check = [&](const std::array<float, 2> &multiples) {
            SCOPED_TRACE(multiples[1]);
            expect_reference(with_logits(3, size, multiples));
        };
        check({1, 0.75f});
        check({1, -1});
        check({0.75f, 0});
    }
}

TEST_P(HugeLogits, Sinks) {
    for (const float size : {3e38f, -3e38f, most, -most}) {
        Attention small = normal(3, block() + 9), huge = with_logits(3, size, {1, 0.75f});
        small.sink = huge.sink = {size, 0, -size, size};
        expect_reference(small);
        expect_reference(huge);
    }
}

TEST_P(HugeScores, Biases) {
    for (const float size : sizes) {
        for (const heed_dtype bias_dtype : {HEED_F32, kernel().info.dtype}) {
            if (bias_dtype == HEED_F16) continue;  // holds no huge number
            Rng rng(15);
            Attention a = normal(3, block() + 9);
            a.bias_dtype = bias_dtype;
            add_bias(&a, {1, 1, 0, 0}, &rng);
            for (int32_t i = 0; i < a.q_len; i++) {
                for (int32_t j = 0; j < a.kv_len; j++) a.bias.at(0, 0, i, j) = i == 1 && j % 3 == 0 ? size / 2 : size;
            }
            if (bias_dtype == HEED_BF16) std::fill(a.q.begin(), a.q.end(), 0.0f);
            hold_in_types(&a);
            expect_reference(a);
        }
    }
}

// A key's large logit and a larger bias against it, each beyond a float in units of fixed point; other keys have none.
TEST_P(HugeScores, BiasAgainstALogit) {
    for (const heed_dtype bias_dtype : {HEED_F32, kernel().info.dtype}) {
        if (bias_dtype == HEED_F16) continue;  // holds no huge number
        Rng rng(15);
        const float scale = kernel().info.dtype == HEED_BF16 ? 1 : 0x1p100f;
        Attention a = with_logits(3, scale, {0, 0});
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) a.k_row(b, 5, g)[0] = 0x1p110f / scale;
        }
        a.bias_dtype = bias_dtype;
        add_bias(&a, {1, 1, 0, 0}, &rng);
        for (int32_t i = 0; i < a.q_len; i++) {
            for (int32_t j = 0; j < a.kv_len; j++) a.bias.at(0, 0, i, j) = j == 5 ? -0x1.fp127f : 0;
        }
        hold_in_types(&a);
        expect_reference(a);
    }
}

// Softcaps whose end such logits reach.
TEST_P(HugeScores, Softcaps) {
    if (!kernel().has(HEED_FEATURE_SOFTCAP)) return;
    for (const float softcap : {1e20f, 1e25f}) {
        for (const float size : {3e38f, -3e38f}) {
            Attention a = with_logits(3, size, {1, 1});
            a.softcap = softcap;
            expect_reference(a);
        }
    }
}

// A product with int8 codes is up to 127 times the logit.
std::vector<TableKernel> of_floats(std::vector<TableKernel> kernels) {
    return only(on_cpu(std::move(kernels)), [](const TableKernel &kernel) { return !kernel.int8_kv(); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, HugeLogits, testing::ValuesIn(of_floats(kernels_of_64())), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeLogits);
INSTANTIATE_TEST_SUITE_P(Kernels, HugeScores, testing::ValuesIn(of_floats(score_kernels_of_64())), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HugeScores);

}  // namespace
}  // namespace heed_test
