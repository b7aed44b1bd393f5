// Masks, and biases of 0 and minus infinity, with a structure: whole blocks of keys that no row sees, or all rows do.
// CPU kernels sweep over the tensor first and pass such blocks by, or take them as if nothing were masked.
#include "tests/support/expect.h"

namespace heed_test {
namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

struct Pattern {
    const char *name;
    std::function<bool(int32_t b, int32_t h, int32_t i, int32_t j)> sees;
};

class Sweep : public KernelTest {
protected:
    // More than one task per head, more than one block of keys.
    Attention attention() const { return of_keys(std::min(3 * block() + 21, 900)); }
    Attention of_keys(int32_t kv_len) const {
        Attention a = grouped(kernel().info.row_block + 9, kv_len, 5, 4, 2, 2, Data::normal);
        a.position = HEED_BOTTOM_RIGHT;
        return a;
    }

    static std::vector<Pattern> patterns(const Attention &a) {
        const int32_t kv_len = a.kv_len, behind = a.kv_len - a.q_len;
        const auto edge = [](int32_t x) { return x / 64; };
        return {{"all", [](int32_t, int32_t, int32_t, int32_t) { return true; }},
                {"none", [](int32_t, int32_t, int32_t, int32_t) { return false; }},
                {"causal", [=](int32_t, int32_t, int32_t i, int32_t j) { return j <= i + behind; }},
                {"window", [=](int32_t, int32_t, int32_t i, int32_t j) { return std::abs(i + behind / 2 - j) < 40; }},
                {"left padding", [](int32_t b, int32_t, int32_t, int32_t j) { return j >= 5 + 100 * b; }},
                {"right padding", [=](int32_t b, int32_t, int32_t, int32_t j) { return j < kv_len - 5 - 100 * b; }},
                {"blocks",
                 [=](int32_t b, int32_t h, int32_t i, int32_t j) { return (edge(i) + edge(j) + b + h) % 3 == 0; }},
                {"a gap", [=](int32_t, int32_t, int32_t, int32_t j) { return j < 30 || j >= kv_len - 30; }},
                {"one key", [=](int32_t, int32_t, int32_t, int32_t j) { return j == kv_len - 2; }},
                {"every other row", [](int32_t, int32_t, int32_t i, int32_t j) { return i % 2 == 0 && j >= 70; }},
                {"one head", [](int32_t, int32_t h, int32_t, int32_t) { return h == 2; }}};
    }

    template <class T>
    static void fill(const Attention &a, PerLogit<T> *tensor, const Pattern &pattern, T seen, T hidden,
                     bool of_each_head = true) {
        const int32_t heads = of_each_head ? a.num_heads : 1;
        tensor->used = true;
        tensor->shape = {a.batch, heads, a.q_len, a.kv_len};
        tensor->data.resize(static_cast<size_t>(a.num_rows() / a.num_heads * heads * a.kv_len));
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t h = 0; h < heads; h++) {
                for (int32_t i = 0; i < a.q_len; i++) {
                    for (int32_t j = 0; j < a.kv_len; j++) {
                        tensor->at(b, h, i, j) = pattern.sees(b, h, i, j) ? seen : hidden;
                    }
                }
            }
        }
    }

    static Attention masked(Attention a, const Pattern &pattern, bool true_hides) {
        a.mask_true_hides = true_hides;
        fill<uint8_t>(a, &a.mask, pattern, true_hides ? 0 : 7, true_hides ? 200 : 0);
        return a;
    }
    static Attention biased(Attention a, const Pattern &pattern, heed_dtype dtype) {
        a.bias_dtype = dtype;
        fill<float>(a, &a.bias, pattern, 0, minus_infinity);
        return a;
    }
};

TEST_P(Sweep, OfMasks) {
    const Attention a = attention();
    bool true_hides = false;
    for (const Pattern &pattern : some(patterns(a), 3)) {
        SCOPED_TRACE(pattern.name);
        expect_exact_set(masked(a, pattern, true_hides), options());
        true_hides = !true_hides;
    }
}

// A row of a mask may be shorter than a vector of bytes, or end within one.
TEST_P(Sweep, OfMasksOfAnyLength) {
    for (const int32_t kv_len : {63, 64, 65, 127, 129, 191}) {
        SCOPED_TRACE(kv_len);
        Attention a = of_keys(kv_len);
        a.window_left = 20;
        expect_exact_set(
            masked(a, {"thirds", [](int32_t b, int32_t h, int32_t i, int32_t j) { return (b + h + i + j) % 3 != 0; }},
                   kv_len % 2 == 0),
            options());
    }
}

TEST_P(Sweep, OfBiases) {
    const Attention a = attention();
    for (const heed_dtype dtype : {HEED_F32, kernel().info.dtype}) {
        for (const Pattern &pattern : some(patterns(a), 2)) {
            SCOPED_TRACE(pattern.name);
            expect_exact_set(biased(a, pattern, dtype), options());
        }
    }
}

// The sweep is made once for all heads; where the bias is each head's own, for each.
TEST_P(Sweep, OfTensorsThatHeadsShare) {
    Attention a = attention();
    a.kv_lens = {a.kv_len - 3, std::min(block() + 40, a.kv_len)};
    const std::vector<Pattern> all = patterns(a);
    for (const size_t n : some<size_t>({2, 3, 4, 6, 9})) {
        SCOPED_TRACE(all[n].name);
        Attention shared = a;
        fill<uint8_t>(a, &shared.mask, all[n], 7, 0, false);
        expect_exact_set(shared, options());
        fill<float>(a, &shared.bias, all[6], 0, minus_infinity, n % 2 == 0);
        expect_exact_set(shared, options().with_threads(3));
    }
}

TEST_P(Sweep, OfBothWithPositionsAndLengths) {
    Attention a = attention();
    a.causal = true;
    a.window_left = block() + 50;
    a.kv_lens = {a.kv_len - 3, std::min(block() + 40, a.kv_len)};
    const std::vector<Pattern> all = patterns(a);
    for (const size_t n : some<size_t>({4, 6, 7, 9})) {
        SCOPED_TRACE(all[n].name);
        expect_exact_set(biased(masked(a, all[n], false), all[n - 1], HEED_F32), options());
    }
}

// Blocks that some rows see, with numbers in the softmax, and a bias that is neither 0 nor hides.
TEST_P(Sweep, OfValues) {
    Rng rng(17);
    const Attention plain = attention();
    for (const Pattern &pattern : some(patterns(plain), 2)) {
        SCOPED_TRACE(pattern.name);
        Attention a = biased(plain, pattern, kernel().info.dtype);
        for (float &element : a.bias.data) {
            if (element == 0 && rng.chance(0.01)) element = rng.chance(0.5) ? 1 : -0.f;
        }
        expect_correct(a, options());
    }
}

// Keys after the mask hold no numbers.
TEST_P(Sweep, OfKeysThatAreNoNumbers) {
    Attention a = attention();
    const std::vector<Pattern> all = patterns(a);
    a = masked(a, all[4], false);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t g = 0; g < a.num_kv_heads; g++) {
            a.k_row(b, 3, g)[0] = a.v_row(b, 3, g)[0] = std::numeric_limits<float>::quiet_NaN();
        }
    }
    if (!kernel().int8_kv()) expect_correct(a, options());
}

// What a flag says with the tensor's words: the same blocks, the same arithmetic.
TEST_P(Sweep, GivesTheBitsOfTheFlag) {
    if (kernel().cuda()) return;
    Attention flag = attention();
    const auto expect_same = [&](const Pattern &pattern) {
        const Result expected = expect_runs(flag, options());
        Attention none = flag;
        none.causal = false;
        none.window_left = none.window_right = -1;
        expect_same_bits(expect_runs(masked(none, pattern, true), options()), expected);
        expect_same_bits(expect_runs(biased(none, pattern, kernel().info.dtype), options()), expected);
    };
    const int32_t behind = flag.kv_len - flag.q_len;
    expect_same({"all", [](int32_t, int32_t, int32_t, int32_t) { return true; }});
    flag.causal = true;
    expect_same({"causal", [=](int32_t, int32_t, int32_t i, int32_t j) { return j <= i + behind; }});
    if (kernel().decode()) return;  // splits of keys begin elsewhere than the window
    flag.window_left = block() + 30;
    expect_same({"window", [=](int32_t, int32_t, int32_t i, int32_t j) {
                     return j <= i + behind && j >= i + behind - block() - 30;
                 }});
}

INSTANTIATE_TEST_SUITE_P(Kernels, Sweep, testing::ValuesIn(kernels_with(HEED_FEATURE_BIAS | HEED_FEATURE_MASK)),
                         kernel_test_name);

}  // namespace
}  // namespace heed_test
