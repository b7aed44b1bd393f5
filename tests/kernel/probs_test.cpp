// heed_attention_probs against what heed_execute computes: every type, storage and form of scores.
#include <cmath>

#include "runtime/reference/element.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

struct Form {
    heed_dtype dtype;
    bool int8_kv;
    heed_q_storage q_storage;
    heed_kv_storage kv_storage;
};

void PrintTo(const Form &form, std::ostream *stream) {
    *stream << "dtype " << form.dtype << ", int8_kv " << form.int8_kv << ", q_storage " << form.q_storage
            << ", kv_storage " << form.kv_storage;
}

Attention every_feature(const Form &form) {
    Attention a = make_attention({2, 4, 2, 5, 70, 40, 24}, Data::normal, 5, form.dtype, form.int8_kv);
    Rng rng(6);
    a.position = HEED_EXPLICIT;
    a.q_offsets = {50, 20};
    a.causal = true;
    a.window_left = 45;
    a.softcap = 3;
    a.kv_lens = {70, 31};
    if (form.q_storage == HEED_Q_VARLEN) a.q_lens = {5, 3};
    add_mask(&a, {0, 1, 0, 0}, 0.7, &rng);
    add_bias(&a, {1, 0, 0, 0}, &rng);
    a.alibi_slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
    a.sink = {0, 1, -1, 2};
    return a;
}

class Probs : public testing::TestWithParam<Form> {
protected:
    // [batch, num_heads, q_len, kv_len] in f32.
    static std::vector<float> probs(const Attention &a, Call &call, heed_probs_mode mode) {
        std::vector<float> values(static_cast<size_t>(a.num_rows()) * static_cast<size_t>(a.kv_len));
        const heed_tensor tensor = {values.data(), static_cast<int64_t>(values.size()), HEED_F32};
        EXPECT_EQ(call.probs(mode, tensor), HEED_OK) << heed_last_error();
        EXPECT_TRUE(call.canaries_intact());
        return values;
    }
};

// Equal logits and a sink up to the largest float; on CUDA up to FLT_MAX / log2(e), as the contract says.
TEST_P(Probs, OfHugeLogits) {
    const Form &form = GetParam();
    for (const float size : {2.3e38f, -2.3e38f, 2.4e38f, 3e38f, -3e38f, std::numeric_limits<float>::max()}) {
        if (test_device() == HEED_CUDA && std::fabs(size) > 2.35e38f) continue;
        Attention a = make_attention({1, 2, 1, 3, 40, 24, 24}, Data::zero, 5, form.dtype, form.int8_kv);
        a.scale = size;
        a.sink = {size, -size};
        for (size_t at = 0; at < a.q.size(); at += 24) a.q[at] = 1;
        for (size_t at = 0; at < a.k.size(); at += 24) a.k[at] = 1;
        hold_in_types(&a);
        Call call(a, CallOptions().with_storage(form.q_storage, form.kv_storage));
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        const std::vector<float> found = probs(a, call, HEED_PROBS_SOFTMAX);
        const size_t of_head = found.size() / 2;
        for (size_t n = 0; n < found.size(); n++) {
            const double expected = n < of_head ? 1.0 / 41 : size > 0 ? 1.0 / 40 : 0.0;
            ASSERT_NEAR(found[n], expected, 1e-6) << size << ", head " << n / of_head;  // not so for NaN
        }
    }
}

TEST_P(Probs, AreThoseOfTheResult) {
    const Attention a = every_feature(GetParam());
    Call call(a, CallOptions().with_storage(GetParam().q_storage, GetParam().kv_storage));
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    const std::vector<float> out = call.out(), lse = call.lse();
    const std::vector<float> softmax = probs(a, call, HEED_PROBS_SOFTMAX), masked = probs(a, call, HEED_PROBS_MASKED);
    const double unit = a.dtype == HEED_F32 ? 1e-5 : a.dtype == HEED_F16 ? 2e-3 : 1.6e-2;
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.num_heads; h++) {
            for (int64_t i = 0; i < a.q_len_of(b); i++) {
                const auto row = static_cast<size_t>(a.lse_index(b, h, i) * a.kv_len);
                std::vector<double> sum(static_cast<size_t>(a.head_dim_v));
                double total = std::exp(static_cast<double>(a.sink[static_cast<size_t>(h)]));
                for (int64_t j = 0; j < a.kv_len; j++) {
                    const auto at = row + static_cast<size_t>(j);
                    total += std::exp(static_cast<double>(masked[at]));
                    EXPECT_EQ(softmax[at] == 0, std::isinf(masked[at])) << "key " << j;
                    if (j >= a.kv_len_of(b)) {
                        EXPECT_EQ(softmax[at], 0) << "key " << j;
                    }
                    for (size_t d = 0; d < sum.size(); d++) {
                        sum[d] += static_cast<double>(softmax[at]) * a.v_row(b, j, h / a.group_size())[d];
                    }
                }
                EXPECT_NEAR(std::log(total), lse[static_cast<size_t>(a.lse_index(b, h, i))], 1e-5);
                for (size_t d = 0; d < sum.size(); d++) {
                    const float got = out[static_cast<size_t>(a.out_index(b, i, h)) + d];
                    EXPECT_NEAR(got, sum[d], unit * std::max(1.0, std::abs(sum[d]))) << "d " << d;
                }
            }
        }
    }
}

// What each mode adds to the one before: the cap, then bias, ALiBi and -inf where a key is not visible.
TEST_P(Probs, ModesBuildOnEachOther) {
    const Attention a = every_feature(GetParam());
    Call call(a, CallOptions().with_storage(GetParam().q_storage, GetParam().kv_storage));
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    const std::vector<float> raw = probs(a, call, HEED_PROBS_SCORES), capped = probs(a, call, HEED_PROBS_SOFTCAP),
                             masked = probs(a, call, HEED_PROBS_MASKED);
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.num_heads; h++) {
            for (int64_t i = 0; i < a.q_len_of(b); i++) {
                const int64_t group = h / a.group_size();
                for (int64_t j = 0; j < a.kv_len_of(b); j++) {
                    const auto at = static_cast<size_t>(a.lse_index(b, h, i) * a.kv_len + j);
                    double score = 0;
                    for (int64_t d = 0; d < a.head_dim; d++) {
                        score += static_cast<double>(a.q_row(b, i, h)[d]) * a.k_row(b, j, group)[d];
                    }
                    score /= std::sqrt(static_cast<double>(a.head_dim));
                    ASSERT_NEAR(raw[at], score, 1e-5 * std::max(1.0, std::abs(score)));
                    ASSERT_NEAR(capped[at], 3 * std::tanh(score / 3), 1e-5);
                    const int64_t distance = j - a.position_of(b, i);
                    const bool visible = a.mask.at(b, h, i, j) != 0 && distance <= 0 && distance >= -a.window_left;
                    ASSERT_EQ(std::isinf(masked[at]), !visible) << "query " << i << ", key " << j;
                    if (!visible) continue;
                    const double slope = a.alibi_slopes[static_cast<size_t>(h)];
                    ASSERT_NEAR(masked[at], 3 * std::tanh(score / 3) + a.bias.at(b, h, i, j) + slope * distance, 2e-5);
                }
            }
        }
    }
}

// More sequences than one launch takes on CUDA, and a result in the problem's type.
TEST(ProbsOfMany, Sequences) {
    const Attention a = make_attention({35, 2, 1, 1, 3, 8, 8}, Data::normal, 9, HEED_F16);
    Call call(a, CallOptions());
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    std::vector<uint16_t> values(static_cast<size_t>(a.num_rows()) * 3);
    const heed_tensor tensor = {values.data(), static_cast<int64_t>(values.size()), HEED_F16};
    ASSERT_EQ(call.probs(HEED_PROBS_SCORES, tensor), HEED_OK) << heed_last_error();
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < 2; h++) {
            for (int64_t j = 0; j < 3; j++) {
                double score = 0;
                for (int64_t d = 0; d < 8; d++) score += static_cast<double>(a.q_row(b, 0, h)[d]) * a.k_row(b, j, 0)[d];
                score /= std::sqrt(8.0);
                const float got = from_bits(HEED_F16, values[static_cast<size_t>((b * 2 + h) * 3 + j)]);
                ASSERT_NEAR(got, score, 0x1p-11 * std::abs(score) + 1e-6);
            }
        }
    }
}

TEST(ProbsArguments, ThreadsAndPoolAreChecked) {
    if (test_device() == HEED_CUDA) GTEST_SKIP() << "of no meaning on CUDA";
    const Attention a = make_attention({1, 1, 1, 2, 3, 8, 8});
    Call call(a, CallOptions().with_threads(2));
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    std::vector<float> values(6, 7);
    const heed_tensor tensor = {values.data(), 6, HEED_F32};
    for (const int32_t threads : {-1, 3}) {
        call.args.num_threads = threads;
        EXPECT_EQ(heed_attention_probs(call.plan(), &call.args, HEED_PROBS_SOFTMAX, &tensor, nullptr),
                  HEED_INVALID_ARGUMENT);
    }
    call.args.num_threads = 0;
    const heed_parallel_for no_function = {};
    call.args.pool = &no_function;
    EXPECT_EQ(heed_attention_probs(call.plan(), &call.args, HEED_PROBS_SOFTMAX, &tensor, nullptr),
              HEED_INVALID_ARGUMENT);
    EXPECT_EQ(values, std::vector<float>(6, 7));
}

std::vector<Form> forms() {
    std::vector<Form> result;
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const bool int8_kv : {false, true}) {
            result.push_back({dtype, int8_kv, HEED_Q_DENSE, HEED_KV_CONTIGUOUS});
            result.push_back({dtype, int8_kv, HEED_Q_DENSE, HEED_KV_PAGED});
            result.push_back({dtype, int8_kv, HEED_Q_VARLEN, HEED_KV_VARLEN});
            result.push_back({dtype, int8_kv, HEED_Q_VARLEN, HEED_KV_PAGED});
        }
    }
    return result;
}

INSTANTIATE_TEST_SUITE_P(Forms, Probs, testing::ValuesIn(forms()));

class ProbsOfDeviceMetadata : public Probs {};

TEST_P(ProbsOfDeviceMetadata, AreThoseOfHostMetadata) {
    const Attention a = every_feature(GetParam());
    const CallOptions options = CallOptions().with_storage(GetParam().q_storage, GetParam().kv_storage);
    Call on_host(a, options), on_device(a, options);
    on_device.problem.metadata_on_device = true;
    ASSERT_EQ(on_host.prepare(), HEED_OK) << heed_last_error();
    ASSERT_EQ(on_device.prepare(), HEED_OK) << heed_last_error();
    for (const heed_probs_mode mode : {HEED_PROBS_SCORES, HEED_PROBS_SOFTMAX}) {
        EXPECT_EQ(probs(a, on_device, mode), probs(a, on_host, mode));
    }
    EXPECT_EQ(on_device.device_status, 0);
    if (GetParam().kv_storage != HEED_KV_PAGED) return;
    constexpr int of_pages = 4;
    const_cast<int32_t *>(on_device.args.page_table)[0] = 1 << 30;
    probs(a, on_device, HEED_PROBS_SCORES);
    EXPECT_EQ(on_device.device_status & 7, of_pages);
}

INSTANTIATE_TEST_SUITE_P(Forms, ProbsOfDeviceMetadata,
                         testing::ValuesIn(test_device() == HEED_CUDA ? forms() : std::vector<Form>()));
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ProbsOfDeviceMetadata);

}  // namespace
}  // namespace heed_test
