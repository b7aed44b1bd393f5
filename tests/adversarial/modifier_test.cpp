// Cases 11 to 13 and 55 to 57: softcap, dropout, ALiBi.
#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

// What the plan says to one field out of range.
heed_status plan_status(const heed_problem &problem) {
    heed_plan *plan = nullptr;
    const heed_status status = heed_plan_create(&problem, &plan);
    heed_plan_destroy(plan);
    return status;
}

// The largest difference of two results, over the bounds of both.
double separation(const Attention &a, const Result &x, const Attention &b, const Result &y) {
    const auto ref_a = reference_of(a), ref_b = reference_of(b);
    double most = 0;
    for (int32_t batch = 0; batch < a.batch && x.status == HEED_OK && y.status == HEED_OK; batch++) {
        for (int32_t i = 0; i < a.q_len; i++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                const auto r = static_cast<size_t>(a.lse_index(batch, h, i));
                const int64_t begin = a.out_index(batch, i, h);
                for (int64_t at = begin; at < begin + a.head_dim_v; at++) {
                    const auto n = static_cast<size_t>(at);
                    const double bound = out_bound(a, ref_a->out[n], ref_a->max_logit[r], ref_a->max_v[r], 0) +
                                         out_bound(b, ref_b->out[n], ref_b->max_logit[r], ref_b->max_v[r], 0);
                    const double difference = static_cast<double>(x.out[n]) - static_cast<double>(y.out[n]);
                    most = std::max(most, std::fabs(difference) / bound);
                }
            }
        }
    }
    return most;
}

class Modified : public Adversarial {
protected:
    // All variants differ by more than 100 times the tolerance.
    void expect_separate(const std::vector<Attention> &variants) {
        std::vector<Result> results;
        for (const Attention &a : variants) results.push_back(expect_runs(a, options()));
        for (size_t m = 0; m < variants.size(); m++) {
            for (size_t n = 0; n < m; n++) {
                EXPECT_GT(separation(variants[m], results[m], variants[n], results[n]), 100) << m << " and " << n;
            }
        }
    }
};

TEST_P(Modified, Case13_ScaleAndWindowAreUsed) {
    Attention a = causal(5, block() + 9), scaled = a, window = a, full = a;
    scaled.scale = 0.5f;
    window.window_left = 7;
    full.causal = false;
    full.window_right = 3;
    expect_separate({a, scaled, window, full});
}

INSTANTIATE_TEST_SUITE_P(Kernels, Modified, testing::ValuesIn(kernels_of_64()), kernel_test_name);

class Softcapped : public Modified {};

TEST_P(Softcapped, Case11_HiddenKeysContributeNothing) {
    if (!kernel().has(HEED_FEATURE_BIAS)) GTEST_SKIP() << "no bias";
    Rng rng(11);
    Attention a = normal(7, block() + 9);
    a.softcap = 1;
    add_bias(&a, {1, 1, 1, 0}, &rng);
    Attention zeroed = a;
    const float large = a.dtype == HEED_F16 ? 6e4f : 1e30f;
    for (int32_t j = 0; j < a.kv_len; j += 2) {
        a.bias.at(0, 0, 0, j) = zeroed.bias.at(0, 0, 0, j) = -inf_value;
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                std::fill_n(a.v_row(b, j, g), a.head_dim_v, large);
                std::fill_n(zeroed.v_row(b, j, g), a.head_dim_v, 0.0f);
            }
        }
    }
    expect_same_bits(expect_correct(a, options()), expect_correct(zeroed, options()));
}

TEST_P(Softcapped, Case12_ZeroIsOffAndOthersAreRefused) {
    const Attention a = causal(5, block() + 9);
    expect_correct(a, options());
    heed_problem problem = make_problem(a, options());
    const ForcedKernel forced(kernel().name);
    EXPECT_EQ(plan_status(problem), HEED_OK);
    for (const float softcap : {-1.0f, not_a_number, infinity, -infinity}) {
        problem.softcap = softcap;
        EXPECT_EQ(plan_status(problem), HEED_INVALID_ARGUMENT) << softcap;
    }
}

TEST_P(Softcapped, Case12_TinyCapOfLargeLogits) {
    Attention a = normal(17, block() + 9);
    a.scale = 1e4f / 64;
    a.softcap = 1e-3f;
    const Result result = expect_correct(a, options());
    for (const float lse : result.lse) {
        const double log_n = std::log(static_cast<double>(a.kv_len));
        EXPECT_LE(std::fabs(static_cast<double>(lse) - log_n), 1e-3 + lse_bound(a, log_n, 0));
    }
}

// One key, whose lse is its logit: 1e-4 or so, which a cap of 50 must leave to the last bits.
TEST_P(Softcapped, Case12_CapOfTinyLogits) {
    Attention a = normal(5, 1);
    a.softcap = 50;
    a.scale = 0x1p-13f;
    for (size_t at = 0; at < a.q.size(); at++) a.q[at] = at % 64 == 0 ? 1.0f : 0.0f;
    const auto ref = reference_of(a);
    const Result result = expect_correct(a, options());
    for (size_t r = 0; r < result.lse.size(); r++) {
        ASSERT_LE(std::fabs(static_cast<double>(result.lse[r]) - ref->lse[r]), softcapped_lse_bound(ref->lse[r]));
    }
}

TEST_P(Softcapped, Case13_SoftcapIsUsed) {
    Attention a = causal(5, block() + 9), five = a, fifty = a;
    a.scale = five.scale = fifty.scale = 2;
    five.softcap = 5;
    fifty.softcap = 50;
    expect_separate({a, five, fifty});
}

INSTANTIATE_TEST_SUITE_P(Kernels, Softcapped,
                         testing::ValuesIn(kernels_for({1, 1, 1, 1, 1, 64, 64}, HEED_FEATURE_SOFTCAP)),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Softcapped);

class Dropped : public Modified {};

TEST_P(Dropped, Case13_SeedAndOffsetAreUsed) {
    Attention a = causal(5, block() + 9);
    a.dropout_p = 0.5f;
    Attention seed = a, high_seed = a, offset = a;
    seed.dropout_seed = 1;
    high_seed.dropout_seed = uint64_t{1} << 32;
    offset.dropout_offset = 1;
    expect_separate({a, seed, high_seed, offset});
}

TEST_P(Dropped, Case55_NoneAndAll) {
    Attention a = causal(5, block() + 9);
    const Result off = expect_correct(a, options());
    a.dropout_seed = 99;
    expect_same_bits(expect_correct(a, options()), off);
    a.dropout_p = 1;
    const Result all = expect_correct(a, options());
    for (const float x : all.out) ASSERT_TRUE(x == 0 && !std::signbit(x)) << x;
    expect_same_bits(all.lse, off.lse, "lse");
    heed_problem problem = make_problem(a, options());
    const ForcedKernel forced(kernel().name);
    for (const float p : {-0.1f, 1.1f, not_a_number}) {
        problem.dropout_p = p;
        EXPECT_EQ(plan_status(problem), HEED_INVALID_ARGUMENT) << p;
    }
}

// Two keys at p = 0.9: most rows lose both.
TEST_P(Dropped, Case56_RowsWithAllKeysDropped) {
    Attention a = normal(20, 2);
    const Result off = expect_runs(a, options());
    a.dropout_p = 0.9f;
    const Result result = expect_correct(a, options(), {false, false});
    expect_same_bits(result.lse, off.lse, "lse");
    const auto ref = reference_of(a);
    EXPECT_GT(std::count(ref->num_kept.begin(), ref->num_kept.end(), 0), 64);
    for (size_t n = 0; n < result.out.size(); n++) {
        const auto row_of_n = n / 64, h = row_of_n % 4, i = row_of_n / 4 % 20, b = row_of_n / 80;
        if (ref->num_kept[(b * 4 + h) * 20 + i] > 0) continue;
        ASSERT_TRUE(result.out[n] == 0 && !std::signbit(result.out[n])) << result.out[n];
    }
}

// NaN logits are NaN in the denominator, whatever dropout does to the numerator.
TEST_P(Dropped, Case56_NanLogitsOfDroppedKeys) {
    Attention a = causal(23, 23);
    a.dropout_p = 1;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t g = 0; g < a.num_kv_heads; g++) a.k_row(b, 7, g)[5] = nan_value;
    }
    const Result result = expect_correct(a, options(), {false, false});
    const int64_t row_elements = int64_t{a.num_heads} * 64;
    for (size_t n = 0; n < result.out.size(); n++) {
        const int64_t i = static_cast<int64_t>(n) / row_elements % a.q_len;
        ASSERT_TRUE(i < 7 ? result.out[n] == 0 : std::isnan(result.out[n])) << result.out[n] << " in query " << i;
    }
}

// out = sum w v kept / (1 - p) has the mean of no dropout and the variance p / (1 - p) sum w^2 v^2.
TEST_P(Dropped, Case56_MeanOverSeedsIsTheUndropped) {
    Attention a = kernel().attention({1, 1, 1, 1, 40, 64, 64}, Data::normal, 56);
    std::fill(a.q.begin(), a.q.end(), 0.0f);
    const auto undropped = reference_of(a);
    a.dropout_p = 0.5f;
    constexpr int32_t seeds = 256;
    std::vector<double> mean(64, 0);
    Call call(a, options());
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    for (int32_t seed = 0; seed < seeds; seed++) {
        call.args.dropout_seed = static_cast<uint64_t>(seed);
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        const std::vector<float> out = call.out();
        for (size_t d = 0; d < 64; d++) mean[d] += static_cast<double>(out[d]) / seeds;
    }
    for (int32_t d = 0; d < 64; d++) {
        double squares = 0;
        for (int32_t j = 0; j < a.kv_len; j++) {
            const double v = static_cast<double>(a.v_row(0, j, 0)[d]) / a.kv_len;
            squares += v * v;
        }
        const double expected = undropped->out[static_cast<size_t>(d)];
        const double bound = mean_bound(squares, seeds, out_bound(a, 1, 0, 2 * undropped->max_v[0], 0));
        EXPECT_LE(std::fabs(mean[static_cast<size_t>(d)] - expected), bound) << d;
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Dropped,
                         testing::ValuesIn(kernels_for({1, 1, 1, 1, 1, 64, 64}, HEED_FEATURE_DROPOUT)),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Dropped);

class Sloped : public Modified {
protected:
    Attention sloped(int32_t q_len, int32_t kv_len, bool symmetric = false) const {
        Shape many = shape(q_len, kv_len);
        many.num_heads = 12;
        many.num_kv_heads = 4;
        Attention a = kernel().attention(many, Data::normal, 57);
        a.position = HEED_BOTTOM_RIGHT;
        std::vector<float> slopes;
        for (int32_t h = 0; h < 12; h++) slopes.push_back(std::exp2(-8.0f * static_cast<float>(h + 1) / 12));
        add_alibi(&a, slopes, symmetric);
        return a;
    }
};

TEST_P(Sloped, Case13_AlibiIsUsed) {
    Attention a = causal(5, block() + 9), sloped = a, symmetric = a;
    a.causal = sloped.causal = symmetric.causal = false;
    add_alibi(&sloped, std::vector<float>(4, 0.25f));
    add_alibi(&symmetric, sloped.alibi_slopes, true);
    a.position = sloped.position = symmetric.position = HEED_EXPLICIT;
    a.q_offsets = sloped.q_offsets = symmetric.q_offsets = {5, 9};
    expect_separate({a, sloped, symmetric});
}

TEST_P(Sloped, Case57_TwelveHeadsFromTheBottomRight) {
    const std::vector<std::array<int32_t, 2>> lengths = {{5, 60}, {60, 5}, {1, 33}, {40, 40}};
    for (const auto &[q_len, kv_len] : some(lengths)) {
        for (const bool symmetric : {false, true}) {
            for (const bool is_causal : {false, true}) {
                Attention a = sloped(q_len, kv_len, symmetric);
                a.causal = is_causal;
                expect_correct(a, options(), {false, true});
            }
        }
    }
}

TEST_P(Sloped, Case57_WithoutSlopes) {
    const Attention a = sloped(3, 20);
    Call call(a, options());
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    call.args.alibi_slopes = nullptr;
    EXPECT_EQ(call.execute(), HEED_INVALID_ARGUMENT);
    EXPECT_TRUE(call.outputs_untouched());
}

INSTANTIATE_TEST_SUITE_P(Kernels, Sloped, testing::ValuesIn(kernels_for({1, 1, 1, 1, 1, 64, 64}, HEED_FEATURE_ALIBI)),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Sloped);

}  // namespace
}  // namespace heed_test
