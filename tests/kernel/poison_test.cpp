// NaN and infinity: where not visible they change no bit, where visible they spoil the rows that see them and no
// others.
#include <cmath>

#include "runtime/reference/element.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float inf_value = std::numeric_limits<float>::infinity();

class Poison : public KernelTest {
protected:
    Attention attention(int32_t q_len, int32_t kv_len) const { return grouped(q_len, kv_len, 31); }

    // Keys that no row of their sequence and kv head sees.
    static std::vector<uint8_t> unseen(const Attention &a) {
        std::vector<uint8_t> result(static_cast<size_t>(a.batch * a.num_kv_heads * a.kv_len), 1);
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                for (int32_t i = 0; i < a.q_len; i++) {
                    const std::vector<uint8_t> keys = visible_keys(a, b, h, i);
                    const int64_t first = (b * a.num_kv_heads + h / a.group_size()) * a.kv_len;
                    for (size_t j = 0; j < keys.size(); j++) result[static_cast<size_t>(first) + j] &= !keys[j];
                }
            }
        }
        return result;
    }

    // Poisons every unseen key; some must exist.
    static Attention poisoned(Attention a, float poison) {
        const std::vector<uint8_t> hidden = unseen(a);
        EXPECT_GT(std::count(hidden.begin(), hidden.end(), 1), 0);
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                for (int32_t j = 0; j < a.kv_len; j++) {
                    if (!hidden[static_cast<size_t>((b * a.num_kv_heads + g) * a.kv_len + j)]) continue;
                    std::fill_n(a.k_row(b, j, g), a.head_dim, poison);
                    std::fill_n(a.v_row(b, j, g), a.head_dim_v, poison);
                }
            }
        }
        return a;
    }

    void expect_no_change(const Attention &a) {
        const Result clean = expect_correct(a, options());
        for (const float poison : some<float>({nan_value, inf_value, -inf_value, largest_finite(a.dtype)})) {
            expect_same_bits(expect_runs(poisoned(a, poison), options()), clean);
        }
    }
};

TEST_P(Poison, BeyondTheLengths) {
    Attention a = attention(5, kernel().info.kv_block + 40);
    a.kv_lens = {kernel().info.kv_block + 1, 3};
    expect_no_change(a);
    a.kv_lens = {17, kernel().info.kv_block};
    expect_no_change(a);
}

TEST_P(Poison, BeyondCausal) {
    Attention a = attention(5, kernel().info.kv_block + 40);
    a.causal = true;  // top left: 5 keys are seen
    expect_no_change(a);
}

TEST_P(Poison, OutsideTheWindow) {
    Attention a = attention(5, kernel().info.kv_block + 40);
    a.position = HEED_BOTTOM_RIGHT;
    a.window_left = 20;
    expect_no_change(a);
}

// Each row sees poison that is not visible to it, but visible to others.
TEST_P(Poison, FutureKeysOfOtherRows) {
    for (const int32_t poisoned_key : {7, 18}) {
        Attention a = attention(23, 23);
        a.causal = true;
        const Result clean = expect_correct(a, options());
        for (const float poison : {nan_value, inf_value}) {
            Attention spoiled = a;
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                std::fill_n(spoiled.k_row(0, poisoned_key, g), a.head_dim, poison);
                std::fill_n(spoiled.v_row(0, poisoned_key, g), a.head_dim_v, poison);
            }
            const Result result = expect_runs(spoiled, options());
            for (int32_t b = 0; b < a.batch; b++) {
                for (int32_t i = 0; i < a.q_len; i++) {
                    for (int32_t h = 0; h < a.num_heads; h++) {
                        const bool affected = b == 0 && i >= poisoned_key;
                        const float *got = result.out.data() + a.out_index(b, i, h);
                        const float *old = clean.out.data() + a.out_index(b, i, h);
                        for (int32_t d = 0; d < a.head_dim_v; d++) {
                            ASSERT_TRUE(affected ? std::isnan(got[d]) : got[d] == old[d])
                                << poison << " in key " << poisoned_key << ": batch " << b << ", query " << i
                                << ", head " << h << ", d " << d << " is " << got[d] << ", clean " << old[d];
                        }
                        const auto at = static_cast<size_t>(a.lse_index(b, h, i));
                        ASSERT_TRUE(affected ? std::isnan(result.lse[at]) : result.lse[at] == clean.lse[at])
                            << "lse " << result.lse[at];
                    }
                }
            }
        }
    }
}

TEST_P(Poison, NanInOneQuery) {
    Attention a = attention(23, 40);
    a.q_row(0, 9, 1)[a.head_dim - 1] = nan_value;
    expect_close(a, expect_runs(a, options()));
}

TEST_P(Poison, NanInOneElementOfAKey) {
    Attention a = attention(23, 40);
    a.causal = true;
    a.k_row(1, 9, 1)[0] = nan_value;
    expect_close(a, expect_runs(a, options()));
}

// Only its own column of the rows that see it.
TEST_P(Poison, NanInOneElementOfAValue) {
    for (const float poison : {nan_value, inf_value, -inf_value}) {
        Attention a = attention(23, 40);
        a.causal = true;
        a.v_row(1, 9, 1)[a.head_dim_v / 2] = poison;
        expect_close(a, expect_runs(a, options()), {true, false});
    }
}

// In blocks that some rows see in part, at either end, and in one that all rows see.
TEST_P(Poison, NanInOneElementOfAValueOfManyBlocks) {
    const int32_t block = kernel().info.kv_block;
    for (const int32_t poisoned_key : {block + 9, 2 * block, 3 * block + 9}) {
        for (const float poison : some<float>({nan_value, inf_value, -inf_value})) {
            Attention a = attention(40, 3 * block + 40);
            a.causal = true;
            a.position = HEED_BOTTOM_RIGHT;
            a.window_left = 2 * block;
            a.v_row(1, poisoned_key, 1)[a.head_dim_v / 2] = poison;
            expect_close(a, expect_runs(a, options()), {true, false});
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Poison, testing::ValuesIn(supported_kernels()), kernel_test_name);

class MaskPoison : public Poison {};

TEST_P(MaskPoison, UnderTheMask) {
    Rng rng(1);
    for (const bool true_hides : {false, true}) {
        Attention a = attention(5, kernel().info.kv_block + 40);
        a.mask_true_hides = true_hides;
        add_mask(&a, {1, 1, 1, 0}, 0.6, &rng);
        expect_no_change(a);
    }
}

// A hidden key's bias may be anything, and -inf hides a key whatever it holds.
TEST_P(MaskPoison, UnderAndInTheBias) {
    Rng rng(2);
    Attention a = attention(5, kernel().info.kv_block + 40);
    add_bias(&a, {1, 1, 1, 0}, &rng);
    for (float &element : a.bias.data) {
        if (rng.chance(0.4)) element = -inf_value;
    }
    expect_no_change(a);
    add_mask(&a, {1, 1, 1, 0}, 0.6, &rng);
    const Result clean = expect_correct(a, options());
    for (const float poison : {nan_value, inf_value, std::numeric_limits<float>::max()}) {
        Attention spoiled = a;
        for (int32_t j = 0; j < a.kv_len; j++) {
            if ((a.mask.at(0, 0, 0, j) != 0) == a.mask_true_hides) spoiled.bias.at(0, 0, 0, j) = poison;
        }
        expect_same_bits(expect_runs(spoiled, options()), clean);
    }
}

TEST_P(MaskPoison, BiasBeyondCausalAndLengths) {
    Rng rng(3);
    Attention a = attention(5, kernel().info.kv_block + 40);
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    a.kv_lens = {kernel().info.kv_block + 1, 3};
    add_bias(&a, {0, 0, 0, 0}, &rng);
    const Result clean = expect_correct(a, options());
    for (const float poison : {nan_value, inf_value}) {
        Attention spoiled = a;
        for (int32_t b = 0; b < a.batch; b++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                for (int32_t i = 0; i < a.q_len; i++) {
                    const std::vector<uint8_t> keys = visible_keys(a, b, h, i);
                    for (int32_t j = 0; j < a.kv_len; j++) {
                        if (!keys[static_cast<size_t>(j)]) spoiled.bias.at(b, h, i, j) = poison;
                    }
                }
            }
        }
        expect_same_bits(expect_runs(spoiled, options()), clean);
    }
}

TEST_P(MaskPoison, NanInAVisibleBias) {
    Rng rng(4);
    Attention a = attention(23, 40);
    add_bias(&a, {0, 0, 0, 0}, &rng);
    a.bias.at(1, 2, 9, 11) = nan_value;
    expect_close(a, expect_runs(a, options()));
}

INSTANTIATE_TEST_SUITE_P(Kernels, MaskPoison, testing::ValuesIn(kernels_with(HEED_FEATURE_BIAS | HEED_FEATURE_MASK)),
                         kernel_test_name);

}  // namespace
}  // namespace heed_test
