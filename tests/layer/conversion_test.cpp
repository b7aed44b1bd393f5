// Conversion between multi-head and grouped-query weights, and the element types that it goes through.
#include <cmath>
#include <limits>

#include "runtime/weight_element.h"
#include "tests/ops/tensor.h"

namespace heed_test {
namespace {

using ops::Tensor;

constexpr heed_status invalid = HEED_INVALID_ARGUMENT;

struct Heads {
    int32_t num_heads, num_kv_heads;
};

struct Conversion {
    explicit Conversion(const Heads &heads, heed_dtype dtype, Flush flush = Flush::rear)
        : heads(heads), mha(dtype, {1, heads.num_heads, head_dim, dim}, Layout::packed, flush),
          gqa(dtype, {1, heads.num_kv_heads, head_dim, dim}, Layout::packed, flush), mha_tensor(mha.tensor()),
          gqa_tensor(gqa.tensor()) {}

    heed_status pool() const {
        return heed_mha_to_gqa(heads.num_heads, heads.num_kv_heads, head_dim, dim, &mha_tensor, &gqa_tensor);
    }
    heed_status repeat() const {
        return heed_gqa_to_mha(heads.num_heads, heads.num_kv_heads, head_dim, dim, &gqa_tensor, &mha_tensor);
    }
    int64_t group_size() const { return heads.num_heads / heads.num_kv_heads; }

    static constexpr int32_t head_dim = 5, dim = 7;
    Heads heads;
    Tensor mha, gqa;
    heed_tensor mha_tensor, gqa_tensor;
};

class ConversionTest : public testing::TestWithParam<heed_dtype> {};
INSTANTIATE_TEST_SUITE_P(Layer, ConversionTest, testing::Values(HEED_F32, HEED_F16, HEED_BF16),
                         [](const auto &c) { return std::string(dtype_name(c.param)); });

const Heads all_heads[] = {{1, 1}, {4, 4}, {4, 2}, {8, 1}, {6, 2}, {15, 3}, {32, 4}};

// Zeros of both signs, subnormals, the largest, infinity, and what no short sum is exact for.
void put_edge_values(heed_dtype dtype, Tensor *x) {
    const float largest = largest_finite(dtype), infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> values = {0.0f,    -0.0f,    6e-8f,    -6e-8f,    1e-45f, -1e-45f, 1.0f / 3,
                                       largest, -largest, infinity, -infinity, 1e-3f,  0.1f};
    size_t next = 0;
    x->for_each(
        [&](int64_t a, int64_t b, int64_t c, int64_t d) { x->set(a, b, c, d, values[next++ % values.size()]); });
}

// The mean is rounded to float and then to the dtype.
TEST_P(ConversionTest, PoolsTheMean) {
    for (const Heads &heads : all_heads) {
        for (const Flush flush : {Flush::front, Flush::rear}) {
            Conversion c(heads, GetParam(), flush);
            c.mha.fill_normal(3);
            ASSERT_EQ(c.pool(), HEED_OK) << heed_last_error();
            const double u = (GetParam() == HEED_F32 ? 0 : ops::unit_roundoff(GetParam())) + 0x1p-24;
            c.gqa.for_each([&](int64_t a, int64_t g, int64_t d, int64_t n) {
                double mean = 0;
                for (int64_t h = 0; h < c.group_size(); h++) mean += c.mha.get(a, g * c.group_size() + h, d, n);
                mean /= static_cast<double>(c.group_size());
                const double bound = 1.01 * u * std::abs(mean) + ops::half_smallest(GetParam());
                ASSERT_LE(std::abs(c.gqa.get(a, g, d, n) - mean), bound) << g << " " << d << " " << n;
            });
            EXPECT_TRUE(c.gqa.gaps_intact());
        }
    }
}

TEST_P(ConversionTest, RepeatsEachHeadAndPoolsItBack) {
    for (const Heads &heads : all_heads) {
        for (const Flush flush : {Flush::front, Flush::rear}) {
            Conversion c(heads, GetParam(), flush);
            put_edge_values(GetParam(), &c.gqa);
            const auto before = c.gqa.bytes();
            ASSERT_EQ(c.repeat(), HEED_OK) << heed_last_error();
            const auto repeated = c.mha.bytes();
            const size_t head_bytes = before.size() / static_cast<size_t>(heads.num_kv_heads);
            for (int64_t h = 0; h < heads.num_heads; h++) {
                const size_t from = static_cast<size_t>(h / c.group_size()) * head_bytes;
                ASSERT_EQ(std::memcmp(&repeated[static_cast<size_t>(h) * head_bytes], &before[from], head_bytes), 0);
            }
            EXPECT_TRUE(c.mha.gaps_intact());
            std::memset(c.gqa_tensor.data, 0x55, before.size());
            ASSERT_EQ(c.pool(), HEED_OK) << heed_last_error();
            EXPECT_EQ(c.gqa.bytes(), before) << heads.num_heads << " " << heads.num_kv_heads;
        }
    }
}

TEST_P(ConversionTest, GroupsOfOneAreTheIdentity) {
    Conversion c({3, 3}, GetParam());
    put_edge_values(GetParam(), &c.mha);
    ASSERT_EQ(c.pool(), HEED_OK) << heed_last_error();
    EXPECT_EQ(c.gqa.bytes(), c.mha.bytes());
}

TEST_P(ConversionTest, NanReachesItsMeanOnly) {
    Conversion c({6, 2}, GetParam());
    c.mha.fill_normal(3);
    c.mha.set(0, 4, 2, 6, NAN);
    ASSERT_EQ(c.pool(), HEED_OK) << heed_last_error();
    c.gqa.for_each([&](int64_t a, int64_t g, int64_t d, int64_t n) {
        ASSERT_EQ(std::isnan(c.gqa.get(a, g, d, n)), g == 1 && d == 2 && n == 6);
    });
}

struct ConversionCall {
    int32_t num_heads = 6, num_kv_heads = 2, head_dim = 5, dim = 7;
    heed_tensor from, to;
};

TEST(Conversion, ErrorsNameTheFieldAndWriteNothing) {
    struct Case {
        const char *field;
        void (*spoil)(ConversionCall &);
    };
    const Case cases[] = {
        {"num_heads", [](ConversionCall &c) { c.num_heads = 0; }},
        {"num_heads", [](ConversionCall &c) { c.num_heads = -6; }},
        {"num_kv_heads", [](ConversionCall &c) { c.num_kv_heads = 0; }},
        {"num_kv_heads", [](ConversionCall &c) { c.num_kv_heads = INT32_MIN; }},
        {"num_kv_heads", [](ConversionCall &c) { c.num_kv_heads = 4; }},
        {"num_kv_heads", [](ConversionCall &c) { c.num_kv_heads = 12; }},
        {"head_dim", [](ConversionCall &c) { c.head_dim = 0; }},
        {"dim", [](ConversionCall &c) { c.dim = -7; }},
        {"_weight.size", [](ConversionCall &c) { c.dim = 8; }},
        {"heads of", [](ConversionCall &c) { c.num_heads = c.num_kv_heads = c.head_dim = c.dim = INT32_MAX; }},
        {"dtype", [](ConversionCall &c) { c.from.dtype = HEED_I8; }},
        {"dtype", [](ConversionCall &c) { c.to.dtype = HEED_F16; }},
        {"_weight.size", [](ConversionCall &c) { c.from.size--; }},
        {"_weight.size", [](ConversionCall &c) { c.to.size--; }},
        {"_weight is NULL", [](ConversionCall &c) { c.from.data = nullptr; }},
        {"_weight is NULL", [](ConversionCall &c) { c.to.data = nullptr; }},
        {"aligned", [](ConversionCall &c) { c.from.data = static_cast<char *>(c.from.data) + 1; }},
        {"aligned", [](ConversionCall &c) { c.to.data = static_cast<char *>(c.to.data) + 2; }},
        {"overlaps", [](ConversionCall &c) { c.from.data = c.to.data; }},
    };
    for (const bool pool : {false, true}) {
        const auto call = pool ? heed_mha_to_gqa : heed_gqa_to_mha;
        const Conversion good({6, 2}, HEED_F32);
        for (const Case &spoilt : cases) {
            ConversionCall c;
            c.from = pool ? good.mha_tensor : good.gqa_tensor;
            c.to = pool ? good.gqa_tensor : good.mha_tensor;
            spoilt.spoil(c);
            EXPECT_FAILS(call(c.num_heads, c.num_kv_heads, c.head_dim, c.dim, &c.from, &c.to), invalid, spoilt.field);
            EXPECT_TRUE(good.mha.gaps_intact() && good.gqa.gaps_intact()) << spoilt.field;
            for (const Tensor *tensor : {&good.mha, &good.gqa}) {
                for (const unsigned char byte : tensor->bytes()) ASSERT_EQ(byte, 0xff) << spoilt.field;
            }
        }
        EXPECT_FAILS(call(6, 2, 5, 7, nullptr, &good.gqa_tensor), invalid, "_weight is NULL");
        EXPECT_FAILS(call(6, 2, 5, 7, &good.mha_tensor, nullptr), invalid, "_weight is NULL");
    }
}

class ElementTest : public testing::TestWithParam<heed_dtype> {
protected:
    uint16_t stored(float x) const {
        uint16_t bits[3] = {0x5555, 0x5555, 0x5555};
        heed::store_element(bits, 1, GetParam(), x);
        EXPECT_EQ(bits[0], 0x5555);
        EXPECT_EQ(bits[2], 0x5555);
        return bits[1];
    }
};
INSTANTIATE_TEST_SUITE_P(Layer, ElementTest, testing::Values(HEED_F16, HEED_BF16),
                         [](const auto &c) { return std::string(dtype_name(c.param)); });

uint32_t float_bits(float x) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

float float_of(uint32_t bits) {
    float x = 0;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

TEST_P(ElementTest, LoadsEveryPatternAndStoresItBack) {
    std::vector<uint16_t> patterns(65536);
    for (size_t i = 0; i < patterns.size(); i++) patterns[i] = static_cast<uint16_t>(i);
    for (size_t i = 0; i < patterns.size(); i++) {
        const float got = heed::load_element(patterns.data(), static_cast<int64_t>(i), GetParam());
        const float want = from_bits(GetParam(), patterns[i]);
        if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(got)) << i;
            ASSERT_TRUE(std::isnan(from_bits(GetParam(), stored(got)))) << i;
        } else {
            ASSERT_EQ(float_bits(got), float_bits(want)) << i;
            ASSERT_EQ(stored(got), patterns[i]);
        }
    }
}

// Every value, every tie between neighbours, and the floats next to both: among them all borders to zero, to normal
// numbers and to infinity.
TEST_P(ElementTest, RoundsHalfToEven) {
    const uint16_t infinity = GetParam() == HEED_F16 ? 0x7c00 : 0x7f80;
    for (uint16_t pattern = 0; pattern < infinity; pattern++) {
        const float low = from_bits(GetParam(), pattern);
        const float high = from_bits(GetParam(), static_cast<uint16_t>(pattern + 1));
        // After the largest value the step is that of its exponent.
        const float below = pattern == 0 ? 0 : from_bits(GetParam(), static_cast<uint16_t>(pattern - 1));
        const double middle =
            std::isinf(high) ? low + (low - static_cast<double>(below)) / 2 : (static_cast<double>(low) + high) / 2;
        const auto tie = static_cast<float>(middle);
        for (const float center : {low, tie}) {
            for (const float x : {center, std::nextafter(center, 0.0f), std::nextafter(center, INFINITY)}) {
                ASSERT_EQ(stored(x), to_bits(GetParam(), x)) << x;
                ASSERT_EQ(stored(-x), to_bits(GetParam(), -x)) << x;
            }
        }
        ASSERT_EQ(stored(tie), pattern % 2 == 0 ? pattern : pattern + 1) << tie;
    }
}

TEST_P(ElementTest, StoresAnyFloat) {
    Rng rng(11);
    for (int i = 0; i < 1'000'000; i++) {
        const float x = float_of(static_cast<uint32_t>(rng.bits() >> 32));
        if (std::isnan(x)) {
            ASSERT_TRUE(std::isnan(from_bits(GetParam(), stored(x)))) << float_bits(x);
        } else {
            ASSERT_EQ(stored(x), to_bits(GetParam(), x)) << float_bits(x);
        }
    }
    // A signal in the lowest bits, and a payload that a rounding up would carry out of.
    for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
        EXPECT_TRUE(std::isnan(from_bits(GetParam(), stored(float_of(bits))))) << bits;
    }
    for (const uint32_t bits : {0x7f7fffffu, 0xff7fffffu, 0x7f800000u, 0xff800000u}) {
        EXPECT_EQ(stored(float_of(bits)), to_bits(GetParam(), float_of(bits))) << bits;
        EXPECT_TRUE(std::isinf(from_bits(GetParam(), stored(float_of(bits))))) << bits;
    }
}

TEST(Element, FloatsKeepTheirBits) {
    for (const uint32_t bits : {0u, 0x80000000u, 1u, 0x3f800001u, 0x7f7fffffu, 0x7f800000u, 0x7fffffffu}) {
        const float x = float_of(bits);
        float stored[2] = {0, 0};
        heed::store_element(stored, 1, HEED_F32, heed::load_element(&x, 0, HEED_F32));
        EXPECT_EQ(float_bits(stored[1]), bits);
        EXPECT_EQ(float_bits(stored[0]), 0u);
    }
}

}  // namespace
}  // namespace heed_test
