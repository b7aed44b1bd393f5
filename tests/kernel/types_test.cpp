// f16 and bf16 inputs and outputs, int8 keys and values: accuracy, rounding, range.
#include <cmath>

#include "runtime/reference/element.h"
#include "runtime/reference/reference.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

class Types : public KernelTest {
protected:
    Attention attention(int32_t q_len, int32_t kv_len, Data data = Data::normal, uint64_t seed = 51) const {
        return grouped(q_len, kv_len, seed, 4, 2, 2, data);
    }
};

TEST_P(Types, ShortAndLong) {
    for (const int32_t kv_len : {1, 2, 3, 3 * block() + 17}) {
        for (const int32_t q_len : {1, 3}) expect_correct(attention(q_len, kv_len), options());
    }
}

// Outputs enough to hold the errors against the naive baseline's.
TEST_P(Types, ErrorsAreThoseOfRounding) {
    for (const Data data : {Data::normal, Data::peaked}) {
        Attention a = attention(19, block() + 21, data);
        ASSERT_TRUE(needs_baseline(a) || kernel().any_head_dim());
        expect_correct(a, options(), data == Data::peaked ? Trust::peaked() : Trust());
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        expect_correct(a, options(), data == Data::peaked ? Trust::peaked() : Trust());
    }
}

TEST_P(Types, SparseIntegers) { expect_correct(attention(7, block() + 21, Data::sparse), options()); }

TEST_P(Types, OddHeadCounts) {
    Shape shape = kernel().shape();
    shape.batch = 3;
    shape.num_heads = 7;
    shape.q_len = 5;
    shape.kv_len = 53;
    expect_correct(kernel().attention(shape, Data::normal, 52), options());
}

// Logits and sums beyond the range of the I/O type.
TEST_P(Types, IntermediatesAreWide) {
    Attention a = attention(3, block() + 9);
    a.scale = 0x1p-17f;
    for (float &x : a.q) x *= 128;
    for (float &x : a.k) x *= 128;
    for (float &x : a.v) x = std::copysign(a.dtype == HEED_F16 ? 32768.0f : 0x1p100f, x);
    expect_correct(a, options());
    std::fill(a.q.begin(), a.q.end(), 0.0f);
    const float most = a.dtype == HEED_F16 ? 65504.0f : 0x1p100f;
    std::fill(a.v.begin(), a.v.end(), most);
    hold_in_types(&a);
    expect_close(a, expect_runs(a, options()), {false, false});
}

INSTANTIATE_TEST_SUITE_P(Kernels, Types,
                         testing::ValuesIn(only(supported_kernels(),
                                                [](const TableKernel &kernel) {
                                                    return kernel.info.dtype != HEED_F32 || kernel.int8_kv();
                                                })),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Types);

class Rounding : public Types {};

// Two keys of equal weight whose mean is halfway between two values of the type: to even, without a detour.
TEST_P(Rounding, HalfToEven) {
    Attention a = attention(2, 2);
    std::fill(a.q.begin(), a.q.end(), 0.0f);
    const float ulp = a.dtype == HEED_F16 ? 0x1p-10f : 0x1p-7f;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t g = 0; g < a.num_kv_heads; g++) {
            for (int32_t d = 0; d < a.head_dim_v; d++) {
                const float x = (d % 2 == 0 ? 1 : -1) * (1 + static_cast<float>(d % 128) * ulp);
                a.v_row(b, 0, g)[d] = x;
                a.v_row(b, 1, g)[d] = x + (d % 4 < 2 ? ulp : -ulp);
            }
        }
    }
    const Result result = expect_runs(a, options());
    if (result.status != HEED_OK) return;
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t h = 0; h < a.num_heads; h++) {
            for (int32_t d = 0; d < a.head_dim_v; d++) {
                const int64_t g = h / a.group_size();
                const float mean = (a.v_row(b, 0, g)[d] + a.v_row(b, 1, g)[d]) / 2;
                ASSERT_EQ(result.out[static_cast<size_t>(a.out_index(b, 1, h) + d)], round_to(a.dtype, mean))
                    << "d " << d << ", mean " << mean;
            }
        }
    }
}

TEST_P(Rounding, SubnormalOutputs) {
    Attention a = attention(3, 40);
    const float unit = a.dtype == HEED_F16 ? 0x1p-18f : 0x1p-126f;
    for (float &x : a.v) x *= unit;
    hold_in_types(&a);
    const Result result = expect_runs(a, options());
    const double flushed = most_flushed(kernel().info, a.kv_len);
    if (flushed == 0) return expect_close(a, result, {false, false});
    const Reference reference = compute_reference(a, false);
    for (size_t i = 0; i < result.out.size(); i++) {
        EXPECT_LE(std::fabs(result.out[i] - reference.out[i]), flushed) << i;
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Rounding,
                         testing::ValuesIn(only(supported_kernels(),
                                                [](const TableKernel &kernel) {
                                                    return kernel.info.dtype != HEED_F32 && !kernel.int8_kv();
                                                })),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Rounding);

class Int8 : public Types {};

// Rows whose scales differ by 2^12.
TEST_P(Int8, EachRowHasItsScale) {
    Attention a = attention(9, block() + 21);
    Rng rng(53);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t j = 0; j < a.kv_len; j++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                const float k_factor = std::ldexp(1.0f, rng.between(-10, 1)), v_factor = std::ldexp(1.0f, j % 13 - 6);
                for (int32_t d = 0; d < a.head_dim; d++) a.k_row(b, j, g)[d] *= k_factor;
                for (int32_t d = 0; d < a.head_dim_v; d++) a.v_row(b, j, g)[d] *= v_factor;
            }
        }
    }
    expect_correct(a, options(), {false, true});
}

TEST_P(Int8, RowsOfZerosHaveScaleZero) {
    Attention a = attention(5, block() + 9);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t j = 0; j < a.kv_len; j += 3) {
            std::fill_n(a.k_row(b, j, 0), a.head_dim, 0.0f);
            std::fill_n(a.v_row(b, j, 1), a.head_dim_v, 0.0f);
        }
    }
    expect_correct(a, options());
}

// What a caller's own quantizer may give: codes of -128, negative scales, scales of all 24 bits.
TEST_P(Int8, AnyCodeAndScale) {
    Attention a = attention(5, block() + 9);
    Call call(a, options().with_storage(HEED_Q_DENSE, HEED_KV_CONTIGUOUS));
    ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
    Rng rng(54);
    const auto fill = [&rng](const heed_tensor &tensor, const heed_tensor &scales, std::vector<float> *values) {
        const auto dim = values->size() / static_cast<size_t>(scales.size);
        for (size_t at = 0; at < values->size(); at++) {
            float &scale = static_cast<float *>(scales.data)[at / dim];
            if (at % dim == 0) scale = rng.normal() / 64;
            const int32_t code = rng.between(-128, 127);
            static_cast<int8_t *>(tensor.data)[at] = static_cast<int8_t>(code);
            (*values)[at] = static_cast<float>(code) * scale;
        }
    };
    fill(call.args.k, call.args.k_scale, &a.k);
    fill(call.args.v, call.args.v_scale, &a.v);
    ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
    Attention products = a;  // as they are, off by half a unit of float
    products.int8_kv = false;
    products.dtype = HEED_F32;
    const Verdict verdict = verdict_of(a, compute_reference(products, false), call.out(), call.lse());
    EXPECT_TRUE(verdict.ok) << verdict.complaint;
}

INSTANTIATE_TEST_SUITE_P(Kernels, Int8,
                         testing::ValuesIn(only(supported_kernels(),
                                                [](const TableKernel &kernel) { return kernel.int8_kv(); })),
                         kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Int8);

}  // namespace
}  // namespace heed_test
