// Element types and storages.
#include <cmath>

#include "runtime/reference/element.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

constexpr float inf_value = std::numeric_limits<float>::infinity();

// What a call hands over, read back through the storage by hand.
TEST(Storage, PagesHoldTheTokens) {
    Attention a = make_attention({2, 2, 2, 1, 11, 4, 4});
    a.kv_lens = {11, 6};
    CallOptions options = CallOptions().with_pages(4);
    const Storage storage = lay_out(a, options);
    EXPECT_EQ(storage.max_pages_per_seq, 4);
    EXPECT_EQ(storage.page_table[3], garbage_page);
    EXPECT_EQ(storage.page_table[6], garbage_page);
    EXPECT_EQ(storage.kv.at(1, 8).outer, -1);
    EXPECT_EQ(storage.kv.at(1, 7).outer, storage.page_table[5]);  // after the length, in the last page
    EXPECT_EQ(storage.kv.at(1, 7).inner, 3);
    std::vector<int32_t> pages = {storage.page_table[0], storage.page_table[1], storage.page_table[2],
                                  storage.page_table[4], storage.page_table[5]};
    std::sort(pages.begin(), pages.end());
    EXPECT_EQ(std::unique(pages.begin(), pages.end()), pages.end());
    EXPECT_LT(pages.back(), storage.kv.outer);
    std::copy_n(a.k_row(0, 0, 0), 32, a.k_row(1, 0, 0));
    std::copy_n(a.v_row(0, 0, 0), 32, a.v_row(1, 0, 0));
    options.share_pages = true;
    const Storage shared = lay_out(a, options);
    EXPECT_EQ(shared.page_table[0], shared.page_table[4]);
    EXPECT_NE(shared.page_table[1], shared.page_table[5]);
    a.v_row(1, 0, 0)[1] = std::numeric_limits<float>::quiet_NaN();  // equal to no number
    const Storage poisoned = lay_out(a, options);
    EXPECT_NE(poisoned.page_table[0], poisoned.page_table[4]);
}

TEST(Storage, VarlenTokensAreAdjacent) {
    Attention a = make_attention({3, 2, 2, 4, 5, 4, 4});
    a.q_lens = {2, 0, 4};
    a.kv_lens = {5, 3, 0};
    const Storage storage = lay_out(a, CallOptions().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN));
    EXPECT_EQ(storage.cu_seqlens_q, (std::vector<int32_t>{0, 2, 2, 6}));
    EXPECT_EQ(storage.cu_seqlens_kv, (std::vector<int32_t>{0, 5, 8, 8}));
    EXPECT_TRUE(storage.kv_lens.empty());
    EXPECT_EQ(storage.q.at(2, 1).inner, 3);
    EXPECT_EQ(storage.q.at(0, 2).outer, -1);
    EXPECT_EQ(storage.kv.at(1, 2).inner, 7);
    EXPECT_THROW(lay_out(a, CallOptions()), std::logic_error);  // dense queries
    const Strides strides({{1, 6, 2, 4}}, {{0, 0, 0, 0}});
    std::vector<float> tensor(48, -1);
    scatter(a.q, storage.q, {{1, 6, 2, 4}}, strides, HEED_F32, tensor.data());
    EXPECT_EQ(tensor[3 * 8 + 4], a.q_row(2, 1, 1)[0]);
    const std::vector<float> back = gather(storage.q, {{1, 6, 2, 4}}, strides, HEED_F32, tensor.data());
    EXPECT_EQ(back[static_cast<size_t>(a.q_index(2, 3, 1) + 3)], a.q_row(2, 3, 1)[3]);
    EXPECT_EQ(back[static_cast<size_t>(a.q_index(1, 0, 0))], 0);
}

TEST(Element, Rounding) {
    EXPECT_EQ(to_bits(HEED_F16, 1), 0x3c00);
    EXPECT_EQ(to_bits(HEED_F16, -2), 0xc000);
    EXPECT_EQ(to_bits(HEED_F16, 65519), 0x7bff);
    EXPECT_EQ(to_bits(HEED_F16, 65520), 0x7c00);
    EXPECT_EQ(to_bits(HEED_F16, 0x1p-24f), 1);
    EXPECT_EQ(to_bits(HEED_F16, 0x1p-25f), 0);
    EXPECT_EQ(to_bits(HEED_F16, 0x1.002p0f), 0x3c00);  // halfway, to even
    EXPECT_EQ(to_bits(HEED_F16, 0x1.006p0f), 0x3c02);
    EXPECT_EQ(to_bits(HEED_BF16, 0x1.01p0f), 0x3f80);
    EXPECT_EQ(to_bits(HEED_BF16, 0x1.03p0f), 0x3f82);
    EXPECT_EQ(to_bits(HEED_BF16, -inf_value), 0xff80);
    for (int32_t bits = 0; bits < 0x7c00; bits++) {
        ASSERT_EQ(to_bits(HEED_F16, from_bits(HEED_F16, static_cast<uint16_t>(bits))), bits);
    }
}

TEST(Element, QuantizedRowsAreExactAndStable) {
    Rng rng(5);
    for (int32_t n = 0; n < 200; n++) {
        std::vector<float> row(static_cast<size_t>(rng.between(1, 40)));
        for (float &x : row) x = std::ldexp(rng.normal(), rng.between(-3, 3) - n / 4);
        std::vector<int8_t> codes(row.size()), again(row.size());
        const auto size = static_cast<int32_t>(row.size());
        const float scale = quantize_row(row.data(), size, codes.data());
        for (size_t d = 0; d < row.size(); d++) {
            const double exact = static_cast<double>(codes[d]) * static_cast<double>(scale);
            ASSERT_LE(std::fabs(exact - static_cast<double>(row[d])), 0.51 * static_cast<double>(scale));
            row[d] = static_cast<float>(exact);
            ASSERT_EQ(static_cast<double>(row[d]), exact);
        }
        const float second = quantize_row(row.data(), size, again.data());
        for (size_t d = 0; d < row.size(); d++) ASSERT_EQ(static_cast<float>(again[d]) * second, row[d]);
    }
    int8_t code = 1;
    const float zero = 0, infinite = inf_value, most = std::numeric_limits<float>::max();
    EXPECT_EQ(quantize_row(&zero, 1, &code), 0);
    EXPECT_TRUE(std::isnan(quantize_row(&infinite, 1, &code)));
    EXPECT_TRUE(std::isfinite(quantize_row(&most, 1, &code) * 127));
}

}  // namespace
}  // namespace heed_test
