// Copies of rows: exact for each number of 16 bits, and of rows of any length.
#include "runtime/cpu/copy_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "runtime/cpu.h"
#include "runtime/reference/element.h"

namespace {

constexpr int64_t all_numbers = 1 << 16;

template <typename To>
std::vector<To> copied(heed_dtype of, heed_dtype as, const std::vector<uint16_t> &row, int64_t elements) {
    std::vector<To> copy(row.size() + 1, To(77));
    heed::copy_row(of, as)(reinterpret_cast<const char *>(row.data()), reinterpret_cast<char *>(copy.data()), elements);
    return copy;
}

TEST(CopyRows, NumbersOf16BitsAsFloats) {
    if (!heed::cpu_supports(heed::Isa::avx2)) GTEST_SKIP() << "this CPU lacks AVX2";
    std::vector<uint16_t> row(all_numbers);
    for (int64_t i = 0; i < all_numbers; i++) row[i] = static_cast<uint16_t>(i);
    for (const heed_dtype of : {HEED_F16, HEED_BF16}) {
        const std::vector<float> floats = copied<float>(of, HEED_F32, row, all_numbers);
        for (int64_t i = 0; i < all_numbers; i++) {
            const float expected = heed_reference::from_bits(of, row[i]);
            if (std::isnan(expected)) {
                ASSERT_TRUE(std::isnan(floats[i])) << of << " " << i;
            } else {
                ASSERT_EQ(std::memcmp(&floats[i], &expected, sizeof expected), 0) << of << " " << i;
            }
        }
    }
}

TEST(CopyRows, OfAnyLength) {
    const std::vector<uint16_t> row(24, 0x3f80);  // 1 in bf16
    for (int64_t length = 0; length <= 24; length++) {
        const std::vector<uint16_t> same = copied<uint16_t>(HEED_F16, HEED_F16, row, length);
        for (int64_t i = 0; i <= 24; i++) ASSERT_EQ(same[i], i < length ? 0x3f80 : 77) << length;
        if (!heed::cpu_supports(heed::Isa::avx2)) continue;
        const std::vector<float> wide = copied<float>(HEED_BF16, HEED_F32, row, length);
        for (int64_t i = 0; i <= 24; i++) ASSERT_EQ(wide[i], i < length ? 1.f : 77.f) << length;
    }
}

}  // namespace
