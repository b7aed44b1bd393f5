// Cases 24 to 28: splits, threads, repetition, batches, concurrent calls.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>

#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

class Splits : public Adversarial {};

TEST_P(Splits, Case24_AnyNumberOfSplits) {
    for (const int32_t kv_len : {1, 31, sized(2048, 300)}) {
        Attention a = causal(3, kv_len);
        for (const int32_t num_splits : some<int32_t>({1, 2, 3, 7, 8, 16, 32, kv_len, kv_len + 5})) {
            CallOptions split = options();
            split.num_splits = num_splits;
            expect_correct(a, split);
        }
    }
}

// Lengths, causal and windows leave whole splits without a key.
TEST_P(Splits, Case24_EmptySplits) {
    Attention a = normal(3, sized(2048, 800));
    a.causal = true;
    a.position = HEED_EXPLICIT;
    a.q_offsets = {10, 700};
    a.kv_lens = {a.kv_len, 701};
    for (const int32_t window : {-1, 100}) {
        a.window_left = window;
        for (const int32_t num_splits : some<int32_t>({1, 7, 32}, 1)) {
            CallOptions split = options();
            split.num_splits = num_splits;
            expect_correct(a, split);
        }
    }
    a.kv_lens = {0, 0};
    expect_correct(a, options());
}

// Positions as far before the keys as 32 bits can say: every split is empty, the later ones too.
TEST_P(Splits, Case24_PositionsFarBeforeTheKeys) {
    Attention a = normal(3, block() + 600);
    a.causal = true;
    a.position = HEED_EXPLICIT;
    for (const int32_t offset : {std::numeric_limits<int32_t>::min(), -(1 << 30), -a.kv_len}) {
        a.q_offsets = {offset, 5};
        CallOptions split = options();
        split.num_splits = 4;
        expect_correct(a, split);
    }
}

class Workers : public Adversarial {};

TEST_P(Workers, Case25_WorkersChangeNoBit) {
    const Attention a = causal(40, 1000);
    const Result one = expect_correct(a, options());
    for (const int32_t workers : some<int32_t>({2, 3, 5, 7})) {
        ReversePool pool;
        CallOptions pooled = options().with_threads(workers);
        pooled.pool = pool.get();
        expect_same_bits(expect_runs(a, pooled), one);
        EXPECT_EQ(pool.most_items(), workers);
        expect_same_bits(expect_runs(a, options().with_threads(workers)), one);
    }
}

TEST_P(Splits, Case27_BatchInvariance) {
    CallOptions invariant = options();
    invariant.batch_invariant = true;
    Rng rng(27);
    const int32_t capacity = 2 * block() + 9;
    const int32_t length = block() + 3;
    Result alone;
    for (const int32_t batch : {1, 2, 5, sized(16, 3), sized(kernel().leads() ? 64 : 17, 4)}) {
        Shape some = shape(2, capacity);
        some.batch = batch;
        Attention a = kernel().attention(some, Data::normal, 27);
        const Attention first = kernel().attention({1, 4, 2, 2, capacity, 64, 64}, Data::normal, 1);
        std::copy(first.q.begin(), first.q.end(), a.q.begin());
        std::copy(first.k.begin(), first.k.end(), a.k.begin());
        std::copy(first.v.begin(), first.v.end(), a.v.begin());
        a.kv_lens = {length};
        for (int32_t b = 1; b < batch; b++) a.kv_lens.push_back(rng.between(0, capacity));
        Result result = expect_runs(a, invariant.with_threads(batch % 3 + 1));
        if (result.status != HEED_OK) return;
        result.out.resize(first.q.size());
        result.lse.resize(8);
        if (batch == 1) alone = result;
        expect_same_bits(result, alone);
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Splits, testing::ValuesIn(kernels_of_64()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, Workers, testing::ValuesIn(on_cpu(kernels_of_64())), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Workers);

class Concurrency : public Adversarial {};

TEST_P(Concurrency, Case26_ManyRepeats) {
    Shape many = shape(2, 64);
    many.batch = sized(60, 6);
    const Attention a = kernel().attention(many, Data::normal, 26);
    std::vector<float> first, first_lse;
    for (const int32_t threads : {1, 2, 3, 8}) {
        Call call(a, options().with_threads(threads));
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        for (int32_t n = 0; n < sized(63, 3); n++) {
            ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
            const std::vector<float> out = call.out(), lse = call.lse();
            if (first.empty()) first = out, first_lse = lse;
            ASSERT_EQ(std::memcmp(out.data(), first.data(), first.size() * sizeof(float)), 0) << threads << " threads";
            ASSERT_EQ(lse, first_lse) << threads << " threads";
        }
    }
}

// One plan in 8 threads, each with its own tensors and workspace, 10 000 calls in all.
TEST_P(Concurrency, Case28_SharedPlan) {
    constexpr int32_t num_threads = 8;
    const int32_t calls = sized(1250, 5);
    const ForcedKernel forced(kernel().name);
    std::vector<std::unique_ptr<Attention>> data;
    std::vector<std::unique_ptr<Call>> running;
    std::vector<std::vector<float>> expected;
    for (int32_t n = 0; n < num_threads; n++) {
        data.push_back(std::make_unique<Attention>(
            kernel().attention({1, 2, 1, 2, 20, 64, 64}, Data::normal, 28 + static_cast<uint64_t>(n))));
        running.push_back(std::make_unique<Call>(*data.back(), options().with_threads(2)));
        ASSERT_EQ(running.back()->run(), HEED_OK) << heed_last_error();
        expected.push_back(running.back()->out());
    }
    const heed_plan *shared = running[0]->plan();
    std::atomic<int32_t> wrong{0};
    std::vector<std::thread> threads;
    for (size_t n = 0; n < num_threads; n++) {
        threads.emplace_back([&, n] {
            for (int32_t call = 0; call < calls; call++) {
                running[n]->forget_out();
                const bool good = running[n]->execute(shared) == HEED_OK && running[n]->out() == expected[n];
                wrong += !good;
            }
        });
    }
    for (std::thread &thread : threads) thread.join();
    EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Concurrency, testing::ValuesIn(few_kernels_of_64()), kernel_test_name);

}  // namespace
}  // namespace heed_test
