// Relations between results that hold whatever the values are.
#include <cmath>
#include <numeric>

#include "tests/support/expect.h"

namespace heed_test {
namespace {

class Properties : public KernelTest {
protected:
    Attention attention(int32_t q_len, int32_t kv_len) const { return grouped(q_len, kv_len, 41, 6); }

    // Large enough that several threads pay: 2^20 operations each.
    Attention work_for_threads(int32_t threads) const {
        Shape shape = kernel().shape();
        shape.num_heads = 8;
        shape.num_kv_heads = 4;
        shape.kv_len = 1000;
        const int64_t per_query = int64_t{2} * shape.num_heads * shape.kv_len * (shape.head_dim + shape.head_dim_v);
        shape.q_len = static_cast<int32_t>((threads << 20) / per_query) + 2;
        return kernel().attention(shape, Data::normal, 42);
    }
};

class PropertiesOfF32 : public Properties {};
class PropertiesOfPrefill : public Properties {};
class PropertiesOfThreads : public Properties {};

TEST_P(PropertiesOfThreads, ThreadsChangeNoBit) {
    Attention a = work_for_threads(7);
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    const Result one = expect_correct(a, options(), {});
    for (const int32_t threads : some<int32_t>({2, 3, 5, 7}, 1)) {
        expect_same_bits(expect_runs(a, options().with_threads(threads)), one);
        ReversePool pool;
        CallOptions pooled = options().with_threads(threads);
        pooled.pool = pool.get();
        expect_same_bits(expect_runs(a, pooled), one);
        EXPECT_GT(pool.most_items(), 1);
        EXPECT_LE(pool.most_items(), threads);
    }
}

TEST_P(Properties, RepetitionChangesNoBit) {
    const Attention a = attention(9, kernel().info.kv_block + 30);
    Call call(a, options());
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    const std::vector<float> first = call.out(), first_lse = call.lse();
    for (int32_t n = 0; n < sized(5, 2); n++) {
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        expect_same_bits(call.out(), first, "out");
        expect_same_bits(call.lse(), first_lse, "lse");
    }
}

// Where nobody asks for lse, a kernel may use the maximum of earlier keys for a block, except where a logit is far
// above it.
TEST_P(PropertiesOfPrefill, LseChangesNoBit) {
    const int32_t keys = 3 * kernel().info.kv_block + 30, rows = kernel().info.row_block + 9;
    CallOptions without = options();
    without.want_lse = false;
    Attention a = grouped(rows, keys, 44, 2);
    const auto expect_no_change = [&](const char *what) {
        SCOPED_TRACE(what);
        for (const bool causal : {false, true}) {
            a.causal = causal;
            a.position = HEED_BOTTOM_RIGHT;
            expect_same_bits(expect_runs(a, without), expect_runs(a, options()));
        }
    };
    expect_no_change("normal");
    const auto scale_key = [&](int32_t j, float factor) {
        for (int32_t g = 0; g < a.num_kv_heads; g++) {
            for (int32_t d = 0; d < a.head_dim; d++) a.k_row(0, j, g)[d] *= factor;
        }
    };
    scale_key(keys / 2, 40);
    expect_no_change("one high logit");
    for (int32_t j = 0; j < keys; j++) scale_key(j, 1 + 4 * static_cast<float>(j) / 100);
    expect_no_change("logits that grow with the keys");
    for (int32_t j = keys / 3; j < keys / 2; j++) scale_key(j, 1e5f);
    expect_no_change("logits of a million");
    a.k_row(0, keys / 2 + 3, 0)[0] = std::nanf("");
    expect_no_change("a key that is no number");
}

// All rows see several whole blocks: a kernel may sum their weights while it multiplies.
TEST_P(PropertiesOfPrefill, LseOfManyBlocks) {
    const int32_t keys = 3 * kernel().info.kv_block + 30, rows = kernel().info.row_block + 9;
    Attention a = grouped(rows, keys, 45, 2);
    expect_correct(a, options());
    for (int32_t g = 0; g < a.num_kv_heads; g++) {
        for (int32_t d = 0; d < a.head_dim; d++) a.k_row(0, keys / 2, g)[d] *= 8;
    }
    hold_in_types(&a);
    expect_correct(a, options(), Trust::peaked());
    a.k_row(0, keys / 2 + 3, 0)[0] = std::nanf("");
    expect_correct(a, options(), Trust::peaked());
}

TEST_P(Properties, GqaIsMhaWithRepeatedKeys) {
    for (const int32_t q_len : {1, 9}) {
        const Attention gqa = attention(q_len, kernel().info.kv_block + 30);
        Shape shape = gqa;
        shape.num_kv_heads = shape.num_heads;
        Attention mha = kernel().attention(shape, Data::zero);
        mha.q = gqa.q;
        for (int32_t b = 0; b < gqa.batch; b++) {
            for (int32_t j = 0; j < gqa.kv_len; j++) {
                for (int32_t h = 0; h < gqa.num_heads; h++) {
                    const int64_t g = h / gqa.group_size();
                    std::copy_n(gqa.k_row(b, j, g), gqa.head_dim, mha.k_row(b, j, h));
                    std::copy_n(gqa.v_row(b, j, g), gqa.head_dim_v, mha.v_row(b, j, h));
                }
            }
        }
        expect_close(gqa, expect_correct(mha, options()));
    }
}

TEST_P(Properties, OrderOfKeysDoesNotMatter) {
    const Attention a = attention(9, kernel().info.kv_block + 30);
    Attention permuted = a;
    std::vector<int32_t> order(static_cast<size_t>(a.kv_len));
    std::iota(order.begin(), order.end(), 0);
    Rng rng(43);
    for (int32_t n = a.kv_len - 1; n > 0; n--)
        std::swap(order[static_cast<size_t>(n)], order[static_cast<size_t>(rng.below(n + 1))]);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t j = 0; j < a.kv_len; j++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                std::copy_n(a.k_row(b, order[static_cast<size_t>(j)], g), a.head_dim, permuted.k_row(b, j, g));
                std::copy_n(a.v_row(b, order[static_cast<size_t>(j)], g), a.head_dim_v, permuted.v_row(b, j, g));
            }
        }
    }
    expect_close(a, expect_runs(permuted, options()));
}

// With the first element of q at 1, a constant in the first element of every k adds scale * constant to all logits.
TEST_P(Properties, ConstantAddedToAllLogits) {
    Attention a = attention(9, kernel().info.kv_block + 30);
    a.scale = 0.25f;
    for (float &x : a.k) x = std::nearbyint(x);  // so that every type holds the sum
    for (int64_t r = 0; r < a.num_rows(); r++) a.q[static_cast<size_t>(r * a.head_dim)] = 1;
    const Result plain = expect_correct(a, options());
    Attention shifted = a;
    constexpr float constant = 32;  // 8 in logits
    for (size_t at = 0; at < a.k.size(); at += static_cast<size_t>(a.head_dim)) shifted.k[at] += constant;
    Result moved = expect_correct(shifted, options());
    const Reference reference = compute_reference(shifted, false);
    for (size_t r = 0; r < plain.lse.size(); r++) {
        const double expected = static_cast<double>(plain.lse[r]) + static_cast<double>(a.scale * constant);
        EXPECT_LE(std::fabs(static_cast<double>(moved.lse[r]) - expected),
                  2 * lse_bound(shifted, reference.lse[r], reference.max_logit[r]));
    }
    moved.lse.clear();
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t i = 0; i < a.q_len; i++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                const auto r = static_cast<size_t>(a.lse_index(b, h, i));
                for (int64_t at = a.out_index(b, i, h); at < a.out_index(b, i, h) + a.head_dim_v; at++) {
                    const auto n = static_cast<size_t>(at);
                    const double bound = out_bound(shifted, reference.out[n], reference.max_logit[r],
                                                   reference.max_v[r], reference.weight_rounding[n]);
                    const double moved_by = static_cast<double>(moved.out[n]) - static_cast<double>(plain.out[n]);
                    ASSERT_LE(std::fabs(moved_by), 2 * bound);
                }
            }
        }
    }
}

// Three parts of the keys, merged by their lse, are the whole.
TEST_P(PropertiesOfF32, MergeOfAPartitionIsTheWhole) {
    const Attention a = attention(5, 2 * kernel().info.kv_block + 9);
    const int32_t cuts[] = {0, 7, kernel().info.kv_block + 1, a.kv_len};
    std::vector<Result> parts;
    for (size_t n = 0; n < 3; n++) {
        Shape shape = a;
        shape.kv_len = cuts[n + 1] - cuts[n];
        Attention part = kernel().attention(shape, Data::zero);
        part.q = a.q;
        for (int32_t b = 0; b < a.batch; b++) {
            std::copy_n(a.k_row(b, cuts[n], 0), int64_t{shape.kv_len} * a.num_kv_heads * a.head_dim,
                        part.k_row(b, 0, 0));
            std::copy_n(a.v_row(b, cuts[n], 0), int64_t{shape.kv_len} * a.num_kv_heads * a.head_dim_v,
                        part.v_row(b, 0, 0));
        }
        parts.push_back(expect_runs(part, options()));
        if (parts.back().status != HEED_OK) return;
    }
    Result merged = parts[0];
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t i = 0; i < a.q_len; i++) {
            for (int32_t h = 0; h < a.num_heads; h++) {
                const auto r = static_cast<size_t>(a.lse_index(b, h, i));
                double sum = 0;
                for (const Result &part : parts) sum += std::exp(static_cast<double>(part.lse[r]));
                merged.lse[r] = static_cast<float>(std::log(sum));
                for (int64_t d = 0; d < a.head_dim_v; d++) {
                    const auto at = static_cast<size_t>(a.out_index(b, i, h) + d);
                    double out = 0;
                    for (const Result &part : parts)
                        out += std::exp(static_cast<double>(part.lse[r])) / sum * static_cast<double>(part.out[at]);
                    merged.out[at] = static_cast<float>(out);
                }
            }
        }
    }
    expect_close(a, merged, {});
}

TEST_P(Properties, BatchChangesNoBit) {
    Attention a = attention(7, kernel().info.kv_block + 30);
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    a.kv_lens = {a.kv_len - 5, 12};
    CallOptions invariant = options();
    invariant.batch_invariant = true;
    const Result both = expect_runs(a, invariant);
    Shape shape = a;
    shape.batch = 1;
    Attention alone = kernel().attention(shape, Data::zero);
    std::copy_n(a.q.begin(), alone.q.size(), alone.q.begin());
    std::copy_n(a.k.begin(), alone.k.size(), alone.k.begin());
    std::copy_n(a.v.begin(), alone.v.size(), alone.v.begin());
    alone.causal = true;
    alone.position = HEED_BOTTOM_RIGHT;
    alone.kv_lens = {a.kv_lens[0]};
    const Result one = expect_runs(alone, invariant);
    if (both.status != HEED_OK || one.status != HEED_OK) return;
    expect_same_bits({both.out.begin(), both.out.begin() + static_cast<int64_t>(one.out.size())}, one.out, "out");
    expect_same_bits({both.lse.begin(), both.lse.begin() + static_cast<int64_t>(one.lse.size())}, one.lse, "lse");
}

// A cache that grows up to its capacity with one plan.
TEST_P(Properties, LengthsLessThanTheCapacityAreTheShorterProblem) {
    Attention a = attention(3, kernel().info.kv_block + 50);
    a.causal = true;
    a.position = HEED_BOTTOM_RIGHT;
    for (const int32_t kv_len : some<int32_t>({1, 30, kernel().info.kv_block, a.kv_len})) {
        a.kv_lens = {kv_len, std::max(kv_len - 1, 0)};
        expect_correct(a, options());
    }
}

// Whose outputs can be merged without the error of their rounding.
std::vector<TableKernel> f32_kernels() {
    return only(supported_kernels(), [](const TableKernel &kernel) { return kernel.info.dtype == HEED_F32; });
}

std::vector<TableKernel> prefill_kernels() {
    return only(on_cpu(supported_kernels()),
                [](const TableKernel &kernel) { return kernel.info.phase == HEED_PREFILL; });
}

INSTANTIATE_TEST_SUITE_P(Kernels, Properties, testing::ValuesIn(supported_kernels()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, PropertiesOfThreads, testing::ValuesIn(on_cpu(supported_kernels())),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PropertiesOfThreads);
INSTANTIATE_TEST_SUITE_P(Kernels, PropertiesOfPrefill, testing::ValuesIn(prefill_kernels()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PropertiesOfPrefill);
INSTANTIATE_TEST_SUITE_P(Kernels, PropertiesOfF32, testing::ValuesIn(f32_kernels()), kernel_test_name);

}  // namespace
}  // namespace heed_test
