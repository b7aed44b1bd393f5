// heed_attention_probs: rows that see nothing, in every mode and type of result, and what is refused.
#include <cstring>

#include "runtime/reference/element.h"
#include "runtime/status.h"
#include "tests/support/cpu_targets.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

constexpr int32_t q_len = 5, kv_len = 20, num_heads = 4;

// One of three sequences has no keys; with varlen queries one has no queries.
Attention ragged(heed_dtype dtype, bool varlen) {
    Attention a = make_attention({3, num_heads, 2, q_len, kv_len, 40, 24}, Data::normal, 3, dtype);
    a.kv_lens = {kv_len, 0, 7};
    if (varlen) a.q_lens = {q_len, 3, 0};
    return a;
}

// The error of the sum of a row's weights: each rounds to the type by half a unit, and has an exponential's few units
// of float.
double sum_bound(heed_dtype dtype) {
    return (dtype == HEED_F32 ? 0x1p-24 : dtype == HEED_F16 ? 0x1p-11 : 0x1p-8) + kv_len * 0x1p-23;
}

class ProbsRows : public testing::TestWithParam<std::tuple<heed_dtype, bool>> {
protected:
    // Element (b, h, i, j) of a result [3, num_heads, q_len, kv_len].
    static float at(const std::vector<float> &values, int32_t b, int32_t h, int32_t i, int32_t j) {
        return values[static_cast<size_t>(((b * num_heads + h) * q_len + i) * kv_len + j)];
    }

    static std::vector<float> probs(Call &call, heed_probs_mode mode, heed_dtype dtype) {
        std::vector<uint32_t> words(3 * num_heads * q_len * kv_len, 0xffffffffu);
        const auto count = static_cast<int64_t>(words.size());
        EXPECT_EQ(call.probs(mode, {words.data(), count, dtype}), HEED_OK) << heed_last_error();
        std::vector<float> values;
        for (int64_t n = 0; n < count; n++) values.push_back(load(words.data(), n, dtype));
        return values;
    }
};

TEST_P(ProbsRows, ThatSeeNothingAreHiddenOrZero) {
    const auto [dtype, varlen] = GetParam();
    const Attention a = ragged(dtype, varlen);
    CallOptions options;
    if (varlen) options = options.with_storage(HEED_Q_VARLEN, HEED_KV_CONTIGUOUS);
    Call call(a, options);
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    for (const heed_dtype result : {HEED_F32, dtype}) {
        const std::vector<float> masked = probs(call, HEED_PROBS_MASKED, result),
                                 softmax = probs(call, HEED_PROBS_SOFTMAX, result);
        for (int32_t b = 0; b < 3; b++) {
            for (int32_t h = 0; h < num_heads; h++) {
                for (int32_t i = 0; i < q_len; i++) {
                    double sum = 0;
                    for (int32_t j = 0; j < kv_len; j++) {
                        const bool exists = i < a.q_len_of(b), visible = exists && j < a.kv_len_of(b);
                        const float score = at(masked, b, h, i, j), weight = at(softmax, b, h, i, j);
                        ASSERT_EQ(score == -std::numeric_limits<float>::infinity(), exists && !visible) << b << j;
                        ASSERT_TRUE(exists || score == 0) << score;
                        ASSERT_EQ(weight != 0, visible) << b << j << ": " << weight;
                        sum += static_cast<double>(weight);
                    }
                    const double total = i < a.q_len_of(b) && a.kv_len_of(b) > 0 ? 1 : 0;
                    ASSERT_NEAR(sum, total, sum_bound(result));
                }
            }
        }
    }
}

// Blocks whose rows see all keys are made with fewer instructions: the last row of a causal call is in another one.
TEST_P(ProbsRows, ThatSeeAllHaveTheSameBitsInAnyBlock) {
    const auto [dtype, varlen] = GetParam();
    constexpr int32_t len = 37;
    Attention a = make_attention({1, num_heads, 2, len, len, 40, 24}, Data::normal, 3, dtype);
    a.scale = 0.137f;
    a.sink = {0, 1, -std::numeric_limits<float>::infinity(), 2};
    CallOptions options;
    if (varlen) options = options.with_storage(HEED_Q_VARLEN, HEED_KV_CONTIGUOUS);
    const auto last_rows = [&](bool causal) {
        a.causal = causal;
        Call call(a, options);
        EXPECT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        const size_t row = len * static_cast<size_t>(heed::dtype_bytes(dtype));
        std::vector<uint8_t> found(num_heads * len * row), last;
        EXPECT_EQ(call.probs(HEED_PROBS_SOFTMAX, {found.data(), num_heads * len * len, dtype}), HEED_OK)
            << heed_last_error();
        for (int32_t h = 1; h <= num_heads; h++) {
            const auto end = found.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(h * len) * row);
            last.insert(last.end(), end - static_cast<std::ptrdiff_t>(row), end);
        }
        return last;
    };
    on_each_cpu_target([&] { EXPECT_EQ(last_rows(true), last_rows(false)); });
}

INSTANTIATE_TEST_SUITE_P(Types, ProbsRows,
                         testing::Combine(testing::Values(HEED_F32, HEED_F16, HEED_BF16), testing::Bool()));

TEST(ProbsArguments, ErrorsNameTheFieldAndWriteNothing) {
    const Attention a = ragged(HEED_F16, false);
    Call call(a, CallOptions());
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    std::vector<float> values(3 * num_heads * q_len * kv_len, 7);
    const auto refused = [&](heed_status status, const char *sentence) {
        EXPECT_EQ(status, HEED_INVALID_ARGUMENT);
        EXPECT_NE(std::strstr(heed_last_error(), sentence), nullptr) << heed_last_error();
    };
    const auto run = [&](int mode, heed_tensor result, heed_layout layout = {}) {
        return heed_attention_probs(call.plan(), &call.args, static_cast<heed_probs_mode>(mode), &result, &layout);
    };
    const heed_tensor good = {values.data(), static_cast<int64_t>(values.size()), HEED_F32};
    refused(heed_attention_probs(call.plan(), &call.args, HEED_PROBS_SCORES, nullptr, nullptr), "probs is NULL");
    refused(run(-1, good), "mode is -1; it must be 0..3");
    refused(run(4, good), "mode is 4; it must be 0..3");
    refused(run(0, {good.data, good.size, HEED_BF16}),
            "probs.dtype is bf16 (2); it must be HEED_F32 (0) or the problem's");
    refused(run(0, {good.data, good.size - 1, HEED_F32}), "probs.size is 1199; its layout spans 1200");
    refused(run(0, good, {{400, 100, 10, 1}}), "probs_layout.stride[2] is 10");
    refused(run(0, call.args.q), "probs overlaps q");
    const heed_args given = call.args;
    const int32_t lens[] = {21, 0, 7};
    call.args.kv_lens = lens;
    refused(run(0, good), "kv_lens[0] is 21");
    call.args = given;
    call.args.k.data = nullptr;
    refused(run(0, good), "k is NULL");
    EXPECT_EQ(values, std::vector<float>(values.size(), 7));
}

}  // namespace
}  // namespace heed_test
