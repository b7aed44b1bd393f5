// Cases 14 to 23: extreme values, rounding modes of the caller, NaN, lse.
#include <xmmintrin.h>

#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

class Numerics : public Adversarial {};
class Subnormals : public Adversarial {};
class NumericScores : public Adversarial {};

TEST_P(Numerics, Case14_LargeEqualValues) {
    for (const int32_t kv_len : {1, 64}) {
        Attention a = normal(3, kv_len);
        const float value = a.dtype == HEED_F16 ? 61440.0f : 133120.0f;  // f16 ends at 65504
        for (auto *values : {&a.q, &a.k, &a.v}) std::fill(values->begin(), values->end(), value);
        const Result result = expect_runs(a, options());
        for (const float x : result.out) ASSERT_EQ(x, value);
    }
}

TEST_P(Numerics, Case15_OneKeyWins) {
    for (const int32_t winner : some<int32_t>({0, 5, block(), block() + 8})) {
        Attention a = normal(3, block() + 9);
        a.scale = 1;
        std::fill(a.q.begin(), a.q.end(), 0.0f);
        std::fill(a.k.begin(), a.k.end(), 0.0f);
        for (size_t at = 0; at < a.q.size(); at += 64) a.q[at] = 100;
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) a.k_row(b, winner, g)[0] = 100;
        }
        const Result result = expect_runs(a, options());
        if (result.status != HEED_OK) return;
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t i = 0; i < a.q_len; i++) {
                for (int32_t h = 0; h < a.num_heads; h++) {
                    expect_value_row(a, result, b, i, h, winner);
                }
            }
        }
    }
}

// A dot product of 64 * 300 * 300, which f16 does not hold, against dots of 0.
TEST_P(Numerics, Case15_DotsBeyond65504) {
    constexpr int32_t winner = 3;
    Attention a = normal(3, block() + 9);
    std::fill(a.q.begin(), a.q.end(), 300.0f);
    std::fill(a.k.begin(), a.k.end(), 0.0f);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t g = 0; g < a.num_kv_heads; g++) std::fill_n(a.k_row(b, winner, g), 64, 300.0f);
    }
    const Result result = expect_runs(a, options());
    if (result.status != HEED_OK) return;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t i = 0; i < a.q_len; i++) {
            for (int32_t h = 0; h < a.num_heads; h++) expect_value_row(a, result, b, i, h, winner);
        }
    }
    const auto ref = reference_of(a);
    for (size_t r = 0; r < result.lse.size(); r++) {
        const double error = std::fabs(static_cast<double>(result.lse[r]) - ref->lse[r]);
        ASSERT_LE(error, lse_bound(a, ref->lse[r], ref->max_logit[r]));
    }
}

constexpr uint32_t flush_to_zero = 0x8000, denormals_are_zero = 0x0040;

// Subnormal values come out right, and neither depend on nor disturb the caller's floating-point mode.
TEST_P(Subnormals, Case16_SubnormalsAndTheCallersMode) {
    Attention a = normal(3, 40);
    const float smallest_normal = a.dtype == HEED_F16 ? 0x1p-14f : std::numeric_limits<float>::min();
    for (float &x : a.v) x *= smallest_normal / 8;
    const Attention ordinary = causal(21, block() + 9);
    const Result expected = expect_correct(ordinary, options());
    const uint32_t mode = _mm_getcsr();
    std::vector<Result> results;
    for (const uint32_t bits : {0u, flush_to_zero, denormals_are_zero, flush_to_zero | denormals_are_zero}) {
        for (const int32_t threads : {1, 3}) {
            Call call(a, options().with_threads(threads)), other(ordinary, options().with_threads(threads));
            ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
            ASSERT_EQ(other.prepare(), HEED_OK) << heed_last_error();
            _mm_setcsr((mode & ~(flush_to_zero | denormals_are_zero)) | bits);
            const uint32_t before = _mm_getcsr();
            const heed_status status = call.execute(), other_status = other.execute();
            const uint32_t after = _mm_getcsr();
            _mm_setcsr(mode);
            ASSERT_EQ(status, HEED_OK);
            ASSERT_EQ(other_status, HEED_OK);
            // The status flags of the caller may gather, the modes may not change.
            EXPECT_EQ(after & ~0x3fu, before & ~0x3fu);
            results.push_back({status, call.out(), call.lse()});
            expect_same_bits({HEED_OK, other.out(), other.lse()}, expected);
        }
    }
    const auto ref = reference_of(a);
    for (const Result &result : results) {
        expect_same_bits(result, results[0]);
        for (size_t n = 0; n < ref->out.size(); n++) {
            // A subnormal holds fewer bits: half its step for each of the sums and the product.
            const double step = std::numeric_limits<float>::denorm_min();
            const double bound = out_bound(a, ref->out[n], 0, 0, ref->weight_rounding[n]) + step * a.kv_len +
                                 most_flushed(kernel().info, a.kv_len);
            ASSERT_LE(std::fabs(static_cast<double>(result.out[n]) - ref->out[n]), bound);
        }
    }
}

TEST_P(Numerics, Case17_LogitsSpreadOver104) {
    Attention a = normal(2, block() + 40);
    a.scale = 1;
    std::fill(a.q.begin(), a.q.end(), 0.0f);
    for (size_t at = 0; at < a.q.size(); at += 64) a.q[at] = 1;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t j = 0; j < a.kv_len; j++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                a.k_row(b, j, g)[0] = -104.0f * static_cast<float>(j) / static_cast<float>(a.kv_len - 1);
            }
        }
    }
    const Result result = expect_runs(a, options());
    if (result.status != HEED_OK) return;
    const auto ref = reference_of(a);
    for (size_t n = 0; n < ref->out.size(); n++) {
        const double bound = out_bound(a, ref->out[n], ref->max_logit[0], ref->max_v[0], ref->weight_rounding[n]) +
                             flushed_exp_bound(a.kv_len, ref->max_v[0]);
        ASSERT_LE(std::fabs(static_cast<double>(result.out[n]) - ref->out[n]), bound);  // not so for NaN
    }
    expect_close(a, result, Trust::peaked());
}

TEST_P(Numerics, Case18_ManyEqualLogits) {
    const int32_t keys = kernel().leads() ? sized(131072, 4096) : kernel().widens_keys() ? 8192 : 16384;
    Attention a = kernel().attention({1, 1, 1, 1, keys, 64, 64}, Data::zero);
    std::fill(a.v.begin(), a.v.end(), 1.0f);
    const Result result = expect_runs(a, options());
    for (const float x : result.out) ASSERT_LE(std::fabs(static_cast<double>(x) - 1), constant_v_bound(1));
    for (const float x : result.lse) {
        const double log_n = std::log(static_cast<double>(a.kv_len));
        ASSERT_LE(std::fabs(static_cast<double>(x) - log_n), lse_bound(a, log_n, 0));
    }
}

TEST_P(Numerics, Case19_NanAndInfInVisibleKeys) {
    const Attention a = causal(23, 23);
    const Result clean = expect_correct(a, options());
    for (const float poison : {nan_value, inf_value}) {
        for (const bool in_k : {true, false}) {
            Attention spoiled = a;
            for (int32_t b = 0; b < a.batch; b++) {
                for (int32_t g = 0; g < a.num_kv_heads; g++) {
                    std::fill_n(in_k ? spoiled.k_row(b, 7, g) : spoiled.v_row(b, 7, g), 64, poison);
                }
            }
            const Result result = expect_runs(spoiled, options());
            if (result.status != HEED_OK) return;
            for (int32_t b = 0; b < a.batch; b++) {
                for (int32_t h = 0; h < a.num_heads; h++) {
                    for (int32_t i = 0; i < a.q_len; i++) {
                        for (int64_t at = a.out_index(b, i, h); at < a.out_index(b, i, h) + 64; at++) {
                            const auto n = static_cast<size_t>(at);
                            const float x = result.out[n];
                            ASSERT_TRUE(i < 7                ? x == clean.out[n]
                                        : std::isnan(poison) ? std::isnan(x)
                                                             : !std::isfinite(x))
                                << poison << (in_k ? " in k" : " in v") << ", query " << i << ": " << x;
                        }
                    }
                }
            }
        }
    }
}

// Such a logit weighs nothing, as a bias of -inf: query 0, which sees key 0 only, is a row without keys.
TEST_P(Numerics, Case19_LogitsOfMinusInfinity) {
    Attention a = causal(23, 23);
    if (a.int8_kv) return;  // its codes hold no infinity
    for (float &x : a.q) x = std::fabs(x) + 1;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t g = 0; g < a.num_kv_heads; g++) a.k_row(b, 0, g)[5] = -inf_value;
    }
    expect_close(a, expect_runs(a, options()), Trust::peaked());
}

TEST_P(NumericScores, Case20_MaskedKeyHoldsNan) {
    Rng rng(20);
    Attention a = normal(5, block() + 9);
    add_mask(&a, {1, 1, 1, 0}, 1, &rng);
    for (const int32_t hidden : some<int32_t>({0, 7, block() + 1})) {
        a.mask.at(0, 0, 0, hidden) = 0;
        Attention zeroed = a, spoiled = a;
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                std::fill_n(zeroed.k_row(b, hidden, g), 64, 0.0f);
                std::fill_n(zeroed.v_row(b, hidden, g), 64, 0.0f);
                std::fill_n(spoiled.k_row(b, hidden, g), 64, nan_value);
                std::fill_n(spoiled.v_row(b, hidden, g), 64, nan_value);
            }
        }
        expect_same_bits(expect_runs(spoiled, options()), expect_correct(zeroed, options()));
    }
}

TEST_P(Numerics, Case22_LseOfOneKeyIsItsLogit) {
    const Attention a = normal(9, 1);
    const Result result = expect_correct(a, options());
    if (result.status != HEED_OK) return;
    const auto ref = reference_of(a);
    for (size_t r = 0; r < result.lse.size(); r++) {
        const double logit = ref->lse[r];
        ASSERT_LE(std::fabs(static_cast<double>(result.lse[r]) - logit), lse_bound(a, logit, ref->max_logit[r]));
    }
}

TEST_P(Numerics, Case22_LseIsNatural) {
    const Attention a = normal(9, block() + 9);
    const Result result = expect_correct(a, options());
    const auto ref = reference_of(a);
    for (size_t r = 0; r < result.lse.size(); r++) {
        ASSERT_LE(std::fabs(static_cast<double>(result.lse[r]) - ref->lse[r]), lse_bound(a, ref->lse[r], 0));
    }
}

TEST_P(Numerics, Case23_LseOfAnEmptyRow) {
    const Attention a = causal(5, 2);
    const Result result = expect_correct(a, options());
    if (result.status != HEED_OK) return;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < 3; i++) {
                EXPECT_EQ(result.lse[static_cast<size_t>(a.lse_index(b, h, i))], -inf_value);
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Numerics, testing::ValuesIn(kernels_of_64()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, Subnormals,
                         testing::ValuesIn(only(kernels_of_64(),
                                                [](const TableKernel &kernel) { return !kernel.int8_kv(); })),
                         kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, NumericScores, testing::ValuesIn(score_kernels_of_64()), kernel_test_name);

class PaddedLanes : public Adversarial {};

TEST_P(PaddedLanes, Case21_LanesBehindTheHeadDim) {
    Shape odd = shape(5, block() + 9);
    odd.head_dim = odd.head_dim_v = 57;
    const Attention a = kernel().attention(odd, Data::normal, 21);
    const Result packed = expect_correct(a, contiguous());
    Call call(a, contiguous());
    // Rows of 64 lanes: NaN after the 57 of the inputs, canaries after those of out.
    call.problem.q_layout = call.problem.out_layout = {{a.q_len * a.num_heads * 64, a.num_heads * 64, 64, 1}};
    call.problem.k_layout = call.problem.v_layout = {{a.kv_len * a.num_kv_heads * 64, a.num_kv_heads * 64, 64, 1}};
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    EXPECT_TRUE(call.canaries_intact());
    expect_same_bits(call.out(), packed.out, "out");
}

std::vector<TableKernel> general_kernels() {
    return only(supported_kernels(), [](const TableKernel &kernel) { return kernel.any_head_dim(); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, PaddedLanes, testing::ValuesIn(general_kernels()), kernel_test_name);

}  // namespace
}  // namespace heed_test
