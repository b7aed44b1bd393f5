// Pages: sizes around the key length, order, sharing.
#include "tests/kernel/storage_cases.h"

namespace heed_test {
namespace {

class Pages : public StoredTokens {};

TEST_P(Pages, PagesAroundTheKeyLength) {
    for (const int32_t page_size : some<int32_t>({1, 3, 16, 64, 256})) {
        for (const int32_t kv_len : {page_size - 1, page_size, page_size + 1, 3 * page_size}) {
            if (kv_len == 0) continue;
            const Attention a = attention({}, {kv_len, (kv_len + 1) / 2}, 2, kv_len);
            const Trust trust = {false, false};  // few keys prove little
            const Result paged = expect_correct(a, options().with_pages(page_size), trust);
            expect_same_bits(paged, expect_runs(a, stored({HEED_Q_DENSE, HEED_KV_CONTIGUOUS})));
        }
    }
}

TEST_P(Pages, OrderDoesNotMatter) {
    const Attention a = mixed();
    CallOptions pages = stored({HEED_Q_VARLEN, HEED_KV_PAGED}, 7);
    const Result first = expect_correct(a, pages, {false, true});
    for (const uint64_t seed : {2, 3, 4}) {
        pages.page_seed = seed;
        pages.spare_columns = static_cast<int32_t>(seed) - 2;
        expect_same_bits(expect_runs(a, pages), first);
    }
}

// A prefix that two sequences share, and a page that is twice in one.
TEST_P(Pages, SharedPages) {
    Attention a = attention({}, {100, 80}, 3, 100);
    for (int32_t j = 0; j < 32; j++) {
        for (const int32_t to : {64, 0}) {
            std::copy_n(a.k_row(0, j, 0), a.num_kv_heads * a.head_dim, a.k_row(to == 0, j + to, 0));
            std::copy_n(a.v_row(0, j, 0), a.num_kv_heads * a.head_dim_v, a.v_row(to == 0, j + to, 0));
        }
    }
    const Result separate = expect_correct(a, stored({HEED_Q_DENSE, HEED_KV_PAGED}));
    CallOptions shared = stored({HEED_Q_DENSE, HEED_KV_PAGED});
    shared.share_pages = true;
    const Storage storage = lay_out(a, shared);
    EXPECT_EQ(storage.page_table[0], storage.page_table[4]);
    EXPECT_EQ(storage.page_table[0], storage.page_table[static_cast<size_t>(storage.max_pages_per_seq)]);
    expect_same_bits(expect_runs(a, shared), separate);
}

INSTANTIATE_TEST_SUITE_P(Kernels, Pages,
                         testing::ValuesIn(only(supported_kernels(),
                                                [](const TableKernel &kernel) { return kernel.paged(); })),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Pages);

}  // namespace
}  // namespace heed_test
