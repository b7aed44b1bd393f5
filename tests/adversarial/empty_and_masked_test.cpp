// Cases 1 to 11: rows without keys, causal corners, windows, masks.
#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

void expect_empty_rows(const Attention &a, const Result &result) {
    for (const float x : result.out) ASSERT_TRUE(x == 0 && !std::signbit(x)) << x;
    for (const float x : result.lse) ASSERT_EQ(x, -std::numeric_limits<float>::infinity());
    EXPECT_EQ(static_cast<int64_t>(result.out.size()), a.num_outputs());
}

TEST_P(Adversarial, Case01_NoKeys) {
    for (const bool is_causal : {false, true}) {
        Attention a = normal(3, 0);
        a.causal = is_causal;
        Call call(a, contiguous());
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        call.args.k = call.args.v = {nullptr, 0, HEED_F32};
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        EXPECT_TRUE(call.canaries_intact());
        expect_empty_rows(a, {HEED_OK, call.out(), call.lse()});
    }
}

TEST_P(Adversarial, Case01_NoKeysByLength) {
    Attention a = normal(3, 40);
    a.kv_lens = {0, 0};
    expect_empty_rows(a, expect_correct(a, options()));
}

TEST_P(Adversarial, Case02_NoQueriesOrBatch) {
    Shape no_batch = shape(3, 5);
    no_batch.batch = 0;
    for (const Shape &empty : {no_batch, shape(0, 5), shape(0, 0)}) {
        for (const bool is_causal : {false, true}) {
            Attention a = kernel().attention(empty);
            a.causal = is_causal;
            Call call(a, options());
            ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
            EXPECT_LT(call.args.workspace_bytes, size_t{1} << 40);
            call.args.q = call.args.k = call.args.v = call.args.out = call.args.lse = {nullptr, 0, HEED_F32};
            call.args.workspace = nullptr;
            EXPECT_EQ(call.execute(), HEED_OK) << heed_last_error();
        }
    }
}

TEST_P(AdversarialScores, Case03_RowsOfAMaskAllFalse) {
    Rng rng(3);
    const Attention whole = normal(9, block() + 5);
    const Result all = expect_correct(whole, options());
    Attention a = whole;
    add_mask(&a, {0, 0, 0, 0}, 1, &rng);
    for (const int32_t i : {0, 5, 8}) {
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                for (int32_t j = 0; j < a.kv_len; j++) a.mask.at(b, h, i, j) = 0;
            }
        }
    }
    const Result result = expect_correct(a, options());
    if (result.status != HEED_OK) return;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (const int32_t i : {1, 2, 3, 4, 6, 7}) {
                const int64_t at = a.out_index(b, i, h);
                EXPECT_EQ(std::memcmp(&result.out[static_cast<size_t>(at)], &all.out[static_cast<size_t>(at)],
                                      static_cast<size_t>(a.head_dim_v) * sizeof(float)),
                          0);
            }
        }
    }
}

TEST_P(AdversarialScores, Case04_RowsOfABias) {
    Rng rng(4);
    Attention a = normal(6, block() + 7);
    add_bias(&a, {1, 1, 0, 0}, &rng);
    const float caller_sum = -inf_value + -3.0f;  // of two masks of the caller
    for (int32_t j = 0; j < a.kv_len; j++) {
        a.bias.at(0, 0, 1, j) = -inf_value;
        a.bias.at(0, 0, 2, j) = std::numeric_limits<float>::lowest();
        a.bias.at(0, 0, 3, j) = caller_sum;
    }
    const Result result = expect_runs(a, options());
    if (result.status != HEED_OK) return;
    Attention uniform = a;  // the mean over all keys
    uniform.bias = {};
    std::fill(uniform.q.begin(), uniform.q.end(), 0.0f);
    const auto mean = reference_of(uniform);
    const auto expected = reference_of(a);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < a.q_len; i++) {
                const bool empty = i == 1 || i == 3;
                const Reference &ref = i == 2 ? *mean : *expected;
                const auto r = static_cast<size_t>(a.lse_index(b, h, i));
                for (int64_t at = a.out_index(b, i, h); at < a.out_index(b, i, h) + a.head_dim_v; at++) {
                    const auto n = static_cast<size_t>(at);
                    const double bound =
                        out_bound(a, ref.out[n], ref.max_logit[r], ref.max_v[r], ref.weight_rounding[n]);
                    ASSERT_LE(std::fabs(static_cast<double>(result.out[n]) - ref.out[n]), empty ? 0 : bound)
                        << "query " << i;
                }
                if (empty) {
                    EXPECT_EQ(result.lse[r], -inf_value);
                }
                if (i == 2) {
                    EXPECT_TRUE(std::isfinite(result.lse[r])) << result.lse[r];
                }
            }
        }
    }
}

TEST_P(Adversarial, Case05_MoreQueriesThanKeys) {
    expect_exact_set(causal(5, 2), options());
    const Attention a = causal(5, 2);
    const Result result = expect_correct(a, options());
    if (result.status != HEED_OK) return;
    for (int32_t h = 0; h < a.num_heads; h++) {
        expect_value_row(a, result, 1, 3, h, 0);
    }
}

TEST_P(Adversarial, Case06_FewerQueriesThanKeys) {
    expect_exact_set(causal(2, 5), options());
    const Attention a = causal(1, 339);
    Attention full = a;
    full.causal = false;
    expect_same_bits(expect_correct(a, options()), expect_correct(full, options()));
}

TEST_P(Adversarial, Case07_CausalAroundTiles) {
    const int32_t longest = sized(799, 199), square = sized(257, 129);
    const std::vector<std::array<int32_t, 2>> lengths = {{239, 1}, {longest, 3}, {square, square}, {1, 257}, {97, 97}};
    for (const auto &[q_len, kv_len] : some(lengths)) {
        Shape small = shape(q_len, kv_len);
        small.batch = 1;
        small.num_heads = small.num_kv_heads;
        Attention a = kernel().attention(small);
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        expect_exact_set(a, options());
    }
    for (const int32_t tile : tiles()) {
        for (const int32_t n : some<int32_t>({tile - 1, tile, tile + 1}, 1)) {
            if (n < 1) continue;
            expect_exact_set(causal(n, n), options());
            expect_exact_set(causal(3, n), options());
            expect_exact_set(causal(n, 3), options());
        }
    }
    expect_correct(causal(97, 97), options());
}

TEST_P(Adversarial, Case08_Windows) {
    const int32_t kv_len = block() + 21;
    for (const bool is_causal : {false, true}) {
        Attention a = causal(21, kv_len);
        a.causal = is_causal;
        for (const int32_t left : some<int32_t>({0, 1, block() - 1, block(), block() + 1, kv_len - 1, kv_len, -1})) {
            for (const int32_t right : some<int32_t>({0, 1, block(), -1})) {
                a.window_left = left;
                a.window_right = right;
                expect_exact_set(a, options());
            }
        }
    }
}

TEST_P(Adversarial, Case08_WindowsThatAreCausal) {
    Attention a = causal(21, block() + 21);
    expect_correct(a, options());
    Attention window = a;
    window.causal = false;
    window.window_right = 0;
    for (const int32_t left : {a.kv_len - 1, -1}) {
        window.window_left = left;
        expect_close(a, expect_correct(window, options()));
    }
}

TEST_P(AdversarialScores, Case10_BroadcastMasks) {
    Rng rng(10);
    Attention a = normal(7, block() + 9);
    add_mask(&a, {1, 1, 1, 0}, 0.6, &rng);
    const Result smallest = expect_correct(a, options());
    for (const std::array<int32_t, 4> &axes : {std::array<int32_t, 4>{1, 1, 0, 0}, {0, 1, 1, 0}, {0, 0, 0, 0}}) {
        Attention b = a;
        add_mask(&b, axes, 1, &rng);
        for (int32_t n = 0; n < a.batch * a.num_heads * a.q_len * a.kv_len; n++) {
            const int32_t j = n % a.kv_len, i = n / a.kv_len % a.q_len, h = n / a.kv_len / a.q_len % a.num_heads;
            const int32_t sequence = n / a.kv_len / a.q_len / a.num_heads;
            b.mask.at(sequence, h, i, j) = a.mask.at(0, 0, 0, j);
        }
        expect_same_bits(expect_runs(b, options()), smallest);
        const int64_t row_stride = a.kv_len + 13, batch_stride = row_stride * (a.q_len + 1) * a.num_heads;
        Call padded(b, options());
        padded.problem.mask_layout = {{axes[0] == 1 ? 0 : batch_stride, axes[1] == 1 ? 0 : row_stride * (a.q_len + 1),
                                       axes[2] == 1 ? 0 : row_stride, 1}};
        ASSERT_EQ(padded.run(), HEED_OK) << heed_last_error();
        expect_same_bits(padded.out(), smallest.out, "out");
        Call zero_strides(b, options());  // the full shape, broadcast by strides of 0
        zero_strides.problem.mask_layout = {{0, 0, 0, 1}};
        std::fill_n(zero_strides.problem.mask_shape, 4, 0);
        ASSERT_EQ(zero_strides.run(), HEED_OK) << heed_last_error();
        expect_same_bits(zero_strides.out(), smallest.out, "out");
    }
}

TEST_P(AdversarialScores, Case11_HiddenKeysContributeNothing) {
    Rng rng(11);
    Attention a = normal(7, block() + 9);
    add_bias(&a, {1, 1, 1, 0}, &rng);
    Attention zeroed = a;
    for (int32_t j = 0; j < a.kv_len; j += 2) {
        a.bias.at(0, 0, 0, j) = zeroed.bias.at(0, 0, 0, j) = -inf_value;
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                std::fill_n(a.v_row(b, j, g), a.head_dim_v, 1e30f);
                std::fill_n(zeroed.v_row(b, j, g), a.head_dim_v, 0.0f);
            }
        }
    }
    expect_same_bits(expect_correct(a, options()), expect_correct(zeroed, options()));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Adversarial, testing::ValuesIn(kernels_of_64()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, AdversarialScores, testing::ValuesIn(score_kernels_of_64()), kernel_test_name);

}  // namespace
}  // namespace heed_test
