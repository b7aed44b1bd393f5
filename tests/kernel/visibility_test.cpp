// Which keys a query sees: positions, causal, windows, lengths, masks and biases, named key by key by the output.
#include "tests/support/expect.h"

namespace heed_test {
namespace {

class Visibility : public KernelTest {
protected:
    Attention attention(int32_t batch, int32_t q_len, int32_t kv_len) const {
        Shape shape = kernel().shape();
        shape.batch = batch;
        shape.num_heads = 2;
        shape.q_len = q_len;
        shape.kv_len = kv_len;
        return kernel().attention(shape, Data::normal, 3);
    }

    void each_position(Attention *a, const std::vector<int32_t> &offsets) const {
        for (const heed_position position : {HEED_TOP_LEFT, HEED_BOTTOM_RIGHT}) {
            a->position = position;
            a->q_offsets.clear();
            expect_exact_set(*a, options());
        }
        a->position = HEED_EXPLICIT;
        for (const int32_t offset : some(offsets)) {
            a->q_offsets.assign(static_cast<size_t>(a->batch), offset);
            expect_exact_set(*a, options());
        }
    }
};

TEST_P(Visibility, CausalAtEveryPosition) {
    const int32_t kv_block = kernel().info.kv_block;
    const std::vector<std::array<int32_t, 2>> lengths = {{1, 1},
                                                         {5, 2},
                                                         {2, 5},
                                                         {1, kv_block + 1},
                                                         {kv_block + 1, 3},
                                                         {33, kv_block + 2},
                                                         {kernel().info.row_block + 1, 2 * kv_block}};
    for (const auto &[q_len, kv_len] : some(lengths, 3)) {
        for (const bool causal : {false, true}) {
            Attention a = attention(1, q_len, kv_len);
            a.causal = causal;
            each_position(&a, {0, 1, -3, a.kv_len - 1, a.kv_len + 5, -q_len});
        }
    }
}

TEST_P(Visibility, Windows) {
    const int32_t kv_block = kernel().info.kv_block;
    Attention a = attention(1, 19, kv_block + 21);
    for (const bool causal : {false, true}) {
        a.causal = causal;
        for (const int32_t left : some<int32_t>({-1, 0, 1, 16, kv_block - 1, kv_block, a.kv_len})) {
            for (const int32_t right : some<int32_t>({-1, 0, 1, 17})) {
                a.window_left = left;
                a.window_right = right;
                each_position(&a, {7});
            }
        }
    }
}

TEST_P(Visibility, WindowsThatSeeNothing) {
    Attention a = attention(1, 9, 20);
    a.position = HEED_EXPLICIT;
    a.window_left = a.window_right = 2;
    for (const int32_t offset :
         {-100, -11, -10, 22, 100, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
        a.q_offsets = {offset};
        expect_exact_set(a, options());
    }
}

TEST_P(Visibility, KeyLengths) {
    const int32_t kv_block = kernel().info.kv_block;
    Attention a = attention(6, 11, kv_block + 37);
    a.kv_lens = {0, 1, 17, kv_block, kv_block + 1, a.kv_len};
    for (const bool causal : {false, true}) {
        a.causal = causal;
        a.window_left = -1;
        each_position(&a, {0, 20});
        a.window_left = 30;
        each_position(&a, {0, 20});
    }
}

TEST_P(Visibility, EachSequenceHasItsOwnPosition) {
    Attention a = attention(4, 7, 50);
    a.position = HEED_EXPLICIT;
    a.causal = true;
    a.q_offsets = {0, 43, -4, 1000};
    expect_exact_set(a, options());
    a.kv_lens = {50, 44, 3, 0};
    expect_exact_set(a, options());
}

class Masks : public Visibility {
protected:
    // Every combination of broadcast axes.
    static std::vector<std::array<int32_t, 4>> shapes() {
        std::vector<std::array<int32_t, 4>> result;
        for (int32_t bits = 0; bits < 16; bits++) {
            result.push_back({bits & 1, bits >> 1 & 1, bits >> 2 & 1, bits >> 3 & 1});  // 0 is the full extent
        }
        return result;
    }
};

TEST_P(Masks, BroadcastInEveryAxis) {
    Rng rng(1);
    for (const auto &shape : some(shapes(), 4)) {
        for (const bool true_hides : {false, true}) {
            Attention a = attention(2, 5, kernel().info.kv_block + 9);
            a.mask_true_hides = true_hides;
            add_mask(&a, shape, 0.5, &rng);
            expect_exact_set(a, options());
        }
    }
}

TEST_P(Masks, HidingBiasBroadcastInEveryAxis) {
    Rng rng(2);
    for (const auto &shape : some(shapes(), 4)) {
        Attention a = attention(2, 5, kernel().info.kv_block + 9);
        add_bias(&a, shape, &rng);
        for (float &element : a.bias.data) element = rng.chance(0.5) ? 0 : -std::numeric_limits<float>::infinity();
        expect_exact_set(a, options());
    }
}

TEST_P(Masks, WithCausalWindowLengthsAndBias) {
    Rng rng(3);
    for (const int32_t q_len : {1, 18}) {
        Attention a = attention(3, q_len, kernel().info.kv_block + 37);
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        a.window_left = 90;
        a.kv_lens = {a.kv_len, 20, 0};
        add_mask(&a, {0, 0, 0, 0}, 0.7, &rng);
        add_bias(&a, {1, 0, 0, 0}, &rng);
        for (float &element : a.bias.data) element = rng.chance(0.7) ? 0 : -std::numeric_limits<float>::infinity();
        expect_exact_set(a, options());
    }
}

// Whole blocks of keys without a visible one, and rows without any.
TEST_P(Masks, SparseMasks) {
    Rng rng(4);
    for (const double density : {0.0, 0.002, 0.05}) {
        Attention a = attention(2, 23, std::min(3 * kernel().info.kv_block, 500));
        add_mask(&a, {0, 0, 0, 0}, density, &rng);
        expect_exact_set(a, options());
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Visibility, testing::ValuesIn(supported_kernels()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, Masks, testing::ValuesIn(kernels_with(HEED_FEATURE_BIAS | HEED_FEATURE_MASK)),
                         kernel_test_name);

}  // namespace
}  // namespace heed_test
