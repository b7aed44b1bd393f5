// heed_attention_probs of bf16 with results in bf16, which blocks of tiles and vectors make: against softmax in fp64.
#include <cmath>

#include "runtime/reference/element.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

struct Size {
    int32_t q_len, kv_len, head_dim;
    bool causal;
};

void PrintTo(const Size &size, std::ostream *stream) {
    *stream << size.q_len << " x " << size.kv_len << ", head_dim " << size.head_dim << (size.causal ? ", causal" : "");
}

class ProbsOfBf16 : public testing::TestWithParam<Size> {
protected:
    static std::vector<uint16_t> probs(const Attention &a, int32_t threads) {
        Call call(a, CallOptions().with_threads(threads));
        EXPECT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        std::vector<uint16_t> values(static_cast<size_t>(a.num_rows()) * static_cast<size_t>(a.kv_len), 0xffff);
        const heed_tensor tensor = {values.data(), static_cast<int64_t>(values.size()), HEED_BF16};
        EXPECT_EQ(call.probs(HEED_PROBS_SOFTMAX, tensor), HEED_OK) << heed_last_error();
        return values;
    }

    static Attention attention(const Size &size) {
        Attention a = make_attention({2, 4, 2, size.q_len, size.kv_len, size.head_dim, 16}, Data::normal, 5, HEED_BF16);
        a.causal = size.causal;
        a.sink = {0, 1, -1, 2};
        return a;
    }

    static double score(const Attention &a, int64_t b, int64_t h, int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t d = 0; d < a.head_dim; d++)
            sum += static_cast<double>(a.q_row(b, i, h)[d]) * a.k_row(b, j, h / a.group_size())[d];
        return sum / std::sqrt(static_cast<double>(a.head_dim));
    }
};

// A weight is rounded once, by at most 2^-8 of it; before that its error is below 2e-4: its own 8e-5 and the sum's.
TEST_P(ProbsOfBf16, AreSoftmaxInEachLength) {
    const Attention a = attention(GetParam());
    const std::vector<uint16_t> found = probs(a, 2);
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.num_heads; h++) {
            for (int64_t i = 0; i < a.q_len; i++) {
                double total = std::exp(static_cast<double>(a.sink[static_cast<size_t>(h)]));
                const int64_t end = a.causal ? std::min<int64_t>(i + 1, a.kv_len) : a.kv_len;
                for (int64_t j = 0; j < end; j++) total += std::exp(score(a, b, h, i, j));
                for (int64_t j = 0; j < a.kv_len; j++) {
                    const auto at = static_cast<size_t>(a.lse_index(b, h, i) * a.kv_len + j);
                    const double expected = j < end ? std::exp(score(a, b, h, i, j)) / total : 0;
                    ASSERT_NEAR(from_bits(HEED_BF16, found[at]), expected, (0x1p-8 + 2e-4) * expected)
                        << "sequence " << b << ", head " << h << ", query " << i << ", key " << j;
                }
            }
        }
    }
}

TEST_P(ProbsOfBf16, AnyNumberOfThreadsGivesTheSameBits) {
    const Attention a = attention(GetParam());
    const std::vector<uint16_t> expected = probs(a, 1);
    for (const int32_t threads : {2, 5}) ASSERT_EQ(probs(a, threads), expected) << threads;
}

// Of a key that is not visible nothing counts; a NaN that a row sees makes the row NaN.
TEST_P(ProbsOfBf16, NanReachesThoseThatSeeIt) {
    Attention a = attention(GetParam());
    const std::vector<uint16_t> clean = probs(a, 2);
    a.kv_lens = {a.kv_len, a.kv_len - 1};
    for (int64_t b = 0; b < a.batch; b++) {
        const int64_t last = (b + 1) * a.kv_len * a.num_kv_heads * a.head_dim;
        a.k[static_cast<size_t>(last - 1)] = std::nanf("");
    }
    const std::vector<uint16_t> found = probs(a, 2);
    for (int64_t b = 0; b < a.batch; b++) {
        for (int64_t h = 0; h < a.num_heads; h++) {
            for (int64_t i = 0; i < a.q_len; i++) {
                const bool sees =
                    b == 0 && h / a.group_size() == a.num_kv_heads - 1 && (!a.causal || i + 1 >= a.kv_len);
                const int64_t visible = a.causal ? std::min<int64_t>(i + 1, a.kv_len_of(b)) : a.kv_len_of(b);
                for (int64_t j = 0; j < visible; j++) {
                    const auto at = static_cast<size_t>(a.lse_index(b, h, i) * a.kv_len + j);
                    ASSERT_EQ(std::isnan(from_bits(HEED_BF16, found[at])), sees)
                        << "sequence " << b << ", head " << h << ", query " << i << ", key " << j;
                    if (b == 0 && !sees) {
                        ASSERT_EQ(found[at], clean[at]);
                    }
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ProbsOfBf16,
                         testing::Values(Size{1, 40, 64, false}, Size{5, 33, 40, false}, Size{64, 64, 64, false},
                                         Size{70, 100, 80, false}, Size{70, 100, 80, true}, Size{96, 95, 8, false},
                                         Size{64, 160, 64, true}, Size{33, 31, 33, false}, Size{160, 17, 128, false}));

}  // namespace
}  // namespace heed_test
