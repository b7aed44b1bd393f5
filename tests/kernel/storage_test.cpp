// Varlen and paged storage: one problem gives the same bits wherever its tokens are, and nothing but its tokens is
// read.
#include "runtime/reference/element.h"
#include "tests/kernel/storage_cases.h"

namespace heed_test {
namespace {

TEST_P(StoredTokens, EveryPairGivesTheSameBits) {
    for (const int32_t q_len : {1, 6}) {
        Attention a = attention({}, {block() + 33, 17, 1}, q_len, block() + 40);
        expect_one_result(a, some(legal()));
        a.kv_lens.clear();
        expect_one_result(a, some(legal()));
    }
}

TEST_P(StoredTokens, MixedBatch) {
    enum Visibility { causal, windowed, all };
    for (const Visibility visibility : some<Visibility>({causal, windowed, all}, 1)) {
        Attention a = mixed();
        a.window_left = visibility == windowed ? 20 : -1;
        a.causal = visibility != all;
        expect_one_result(a, some(varlen()));
    }
}

TEST_P(StoredTokens, EachSequenceEqualsItself) {
    const Attention a = mixed();
    const Result all = expect_runs(a, stored(varlen().back()));
    if (all.status != HEED_OK) return;
    for (int32_t b = 0; b < a.batch; b++) {
        if (a.q_lens[static_cast<size_t>(b)] == 0) continue;
        Shape shape = a;
        shape.batch = 1;
        shape.q_len = a.q_len_of(b);
        Attention alone = kernel().attention(shape, Data::zero);
        std::copy_n(a.q.begin() + a.q_index(b, 0, 0), alone.q.size(), alone.q.begin());
        std::copy_n(a.k.begin() + a.k_index(b, 0, 0), alone.k.size(), alone.k.begin());
        std::copy_n(a.v.begin() + a.v_index(b, 0, 0), alone.v.size(), alone.v.begin());
        alone.kv_lens = {a.kv_len_of(b)};
        alone.position = HEED_BOTTOM_RIGHT;
        alone.causal = true;
        Result part;
        part.status = HEED_OK;
        const auto begin = all.out.begin() + a.out_index(b, 0, 0);
        part.out.assign(begin, begin + alone.num_outputs());
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t i = 0; i < shape.q_len; i++) {
                part.lse.push_back(all.lse[static_cast<size_t>(a.lse_index(b, h, i))]);
            }
        }
        expect_close(alone, part, {false, false});
    }
}

TEST_P(StoredTokens, ChunkedPrefill) {
    const Attention a = attention({16, 9}, {block() + 30, 36}, 16, block() + 30);
    expect_one_result(a, varlen());
    const Attention whole = attention({}, {block() + 30, 36}, 16, block() + 30);
    expect_one_result(whole, legal());
}

TEST_P(StoredTokens, VisibleKeys) {
    for (const StoragePair &s : some(varlen(), 1)) {
        Attention a = mixed();
        expect_exact_set(a, stored(s, 3));
        a.window_left = 13;
        a.causal = false;
        expect_exact_set(a, stored(s, 64));
        a.position = HEED_EXPLICIT;
        a.q_offsets = {0, block(), -3, 4, 2, 5};
        a.window_right = 2;
        expect_exact_set(a, stored(s));
        a.position = HEED_TOP_LEFT;
        a.window_left = -1;
        expect_exact_set(a, stored(s, 1));
    }
}

TEST_P(StoredTokens, LayoutsOfEveryStorage) {
    for (const StoragePair &s : legal()) {
        const Attention a = attention({}, {block() + 9, 20}, 5, block() + 12);
        const Result packed = expect_correct(a, stored(s));
        for (const Layout layout : some<Layout>({Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded})) {
            CallOptions strided = stored(s).with_layout(layout);
            strided.garbage_strides = true;
            strided.offset = 3;
            expect_same_bits(expect_runs(a, strided), packed);
        }
    }
}

TEST_P(StoredTokens, StridedVarlenLse) {
    const Attention a = mixed();
    const Result packed = expect_correct(a, stored(varlen()[0]), {false, true});
    Call call(a, stored(varlen()[0]));
    call.problem.lse_layout = {{1, 3, 3 * a.num_heads + 2, 1}};
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    EXPECT_TRUE(call.canaries_intact());
    expect_same_bits(call.lse(), packed.lse, "lse");
    expect_same_bits(call.out(), packed.out, "out");
}

TEST_P(StoredTokens, SplitsAndThreads) {
    const Attention a = attention({2, 1, 0}, {3 * block() + 7, block(), 9}, 2, 3 * block() + 7);
    for (const StoragePair &s : varlen()) {
        for (const int32_t num_splits : some<int32_t>({1, 2, 7}, 1)) {
            CallOptions split = stored(s);
            split.num_splits = num_splits;
            const Result one = expect_correct(a, split);
            expect_same_bits(expect_runs(a, split.with_threads(3)), one);
        }
    }
}

// Keys after the lengths, in page tails, in unused pages, in front of the window.
TEST_P(StoredTokens, PoisonWhereNoRowLooks) {
    for (const StoragePair &s : legal()) {
        for (const int32_t page_size : some(page_sizes(s))) {
            Attention a = attention({}, {block() + 9, 30}, 5, block() + 40);
            a.window_left = 10;
            const Result clean = expect_correct(a, stored(s, page_size));
            for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                                       largest_finite(a.dtype)}) {
                Attention poisoned = a;
                for (int32_t b = 0; b < a.batch; b++) {
                    for (int32_t j = 0; j < a.kv_len; j++) {
                        if (j >= a.kv_len_of(b) - 15 && j < a.kv_len_of(b)) continue;
                        for (int32_t g = 0; g < a.num_kv_heads; g++) {
                            std::fill_n(poisoned.k_row(b, j, g), a.head_dim, poison);
                            std::fill_n(poisoned.v_row(b, j, g), a.head_dim_v, poison);
                        }
                    }
                }
                expect_same_bits(expect_runs(poisoned, stored(s, page_size)), clean);
            }
        }
    }
}

// A NaN that one sequence sees is nothing to the others, adjacent as their tokens are.
TEST_P(StoredTokens, VisibleNanStaysInItsSequence) {
    for (const StoragePair &s : varlen()) {
        Attention a = mixed();
        a.k_row(1, 0, 0)[1] = std::numeric_limits<float>::quiet_NaN();
        a.v_row(1, 3, 1)[0] = std::numeric_limits<float>::quiet_NaN();
        a.q_row(3, 0, 2)[0] = std::numeric_limits<float>::quiet_NaN();
        expect_close(a, expect_runs(a, stored(s, 3)), {false, false});
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, StoredTokens, testing::ValuesIn(supported_kernels()), kernel_test_name);

class FusedVarlen : public StoredTokens {};

TEST_P(FusedVarlen, FusedVarlenQkv) {
    Shape shape = kernel().shape(57, 57);
    shape.batch = 3;
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.q_len = shape.kv_len = 37;
    Attention a = kernel().attention(shape, Data::normal, 62);
    a.q_lens = a.kv_lens = {37, 1, 20};
    CallOptions fused = stored({HEED_Q_VARLEN, HEED_KV_VARLEN});
    const Result packed = expect_correct(a, fused);
    fused.fused_qkv = true;
    for (const Flush flush : {Flush::rear, Flush::front}) {
        expect_same_bits(expect_runs(a, fused.with_flush(flush)), packed);
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, FusedVarlen,
                         testing::ValuesIn(only(supported_kernels(),
                                                [](const TableKernel &kernel) {
                                                    return kernel.info.head_dim == kernel.info.head_dim_v &&
                                                           !kernel.int8_kv();
                                                })),
                         kernel_test_name);

class StorageScores : public StoredTokens {};

// Each sequence uses its corner of a [batch, ., max_q_len, max_kv_len] tensor.
TEST_P(StorageScores, CornersOfMaskAndBias) {
    Rng rng(63);
    for (const StoragePair &s : some(varlen(), 1)) {
        for (const std::array<int32_t, 4> &shape :
             some<std::array<int32_t, 4>>({{0, 0, 0, 0}, {0, 1, 1, 0}, {1, 0, 0, 1}})) {
            Attention a = mixed();
            add_mask(&a, shape, 0.8, &rng);
            add_bias(&a, shape, &rng);
            const Result clean = expect_correct(a, stored(s), {false, false});
            if (shape[0] == 1) continue;  // shared: no element is outside of all corners
            for (int32_t b = 0; b < a.batch; b++) {
                for (int32_t h = 0; h < a.bias.shape[1]; h++) {
                    for (int32_t i = 0; i < a.bias.shape[2]; i++) {
                        for (int32_t j = 0; j < a.kv_len; j++) {
                            if ((a.bias.shape[2] == 1 || i < a.q_len_of(b)) && j < a.kv_len_of(b)) continue;
                            a.bias.at(b, h, i, j) = std::numeric_limits<float>::quiet_NaN();
                            a.mask.at(b, h, i, j) ^= 1;
                        }
                    }
                }
            }
            expect_same_bits(expect_runs(a, stored(s)), clean);
        }
    }
}

TEST_P(StorageScores, MasksNameTheKeys) {
    Rng rng(64);
    for (const StoragePair &s : some(varlen(), 1)) {
        Attention a = mixed();
        add_mask(&a, {0, 1, 0, 0}, 0.5, &rng);
        expect_exact_set(a, stored(s, 3));
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, StorageScores, testing::ValuesIn(kernels_with(HEED_FEATURE_BIAS | HEED_FEATURE_MASK)),
                         kernel_test_name);

}  // namespace
}  // namespace heed_test
