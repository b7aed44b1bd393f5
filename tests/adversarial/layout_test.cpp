// Cases 30, 32, 34 and 36: heads, head dims, strides, alignment.
#include "tests/adversarial/adversarial.h"

namespace heed_test {
namespace {

class Heads : public Adversarial {};

// Logits of 0 and powers of two of keys: every sum is exact.
TEST_P(Heads, Case30_EachHeadReadsItsGroup) {
    const std::vector<std::array<int32_t, 2>> heads = {{8, 2}, {6, 3}, {28, 4}, {64, 8}, {5, 1}, {8, 8}};
    for (const auto &[num_heads, num_kv_heads] : some(heads)) {
        for (const int32_t q_len : {1, 3}) {
            for (const int32_t kv_len : {1, 64}) {
                Attention a = kernel().attention({2, num_heads, num_kv_heads, q_len, kv_len, 64, 64}, Data::normal, 30);
                if (kv_len > 1) std::fill(a.q.begin(), a.q.end(), 0.0f);
                for (int32_t b = 0; b < a.batch; b++) {
                    for (int32_t j = 0; j < kv_len; j++) {
                        for (int32_t g = 0; g < num_kv_heads; g++) {
                            std::fill_n(a.v_row(b, j, g), 64, static_cast<float>(g + 1));
                        }
                    }
                }
                const Result result = expect_runs(a, options());
                if (result.status != HEED_OK) return;
                for (size_t n = 0; n < result.out.size(); n++) {
                    const auto h = static_cast<int32_t>(n / 64) % num_heads;
                    ASSERT_EQ(result.out[n], static_cast<float>(h / (num_heads / num_kv_heads) + 1)) << "head " << h;
                }
            }
        }
    }
}

TEST_P(Heads, Case34_Layouts) {
    const Attention a = causal(37, 37);
    const Result packed = expect_correct(a, options());
    if (!kernel().int8_kv()) {
        CallOptions fused = contiguous();
        fused.fused_qkv = true;
        expect_same_bits(expect_runs(a, fused), packed);
    }
    for (const Layout layout : {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded}) {
        expect_same_bits(expect_runs(a, options().with_layout(layout)), packed);
    }
}

TEST_P(Heads, Case34_InnermostStride) {
    const Attention a = causal(9, 20);
    const Result packed = expect_correct(a, options());
    Call call(a, contiguous());
    call.problem.v_layout = {{a.kv_len * a.num_kv_heads * 128, a.num_kv_heads * 128, 128, 2}};
    const heed_status status = call.run();
    if (status == HEED_OK) {
        expect_same_bits(call.out(), packed.out, "out");
    } else {
        EXPECT_EQ(status, HEED_UNSUPPORTED);
    }
}

TEST_P(Heads, Case36_ElementAlignment) {
    const Attention a = causal(9, 50);
    const Result packed = expect_correct(a, options());
    for (const int32_t offset : some<int32_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})) {
        CallOptions shifted = options();
        shifted.offset = offset;
        expect_same_bits(expect_runs(a, shifted), packed);
        expect_same_bits(expect_runs(a, shifted.with_flush(Flush::front)), packed);
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Heads, testing::ValuesIn(kernels_of_64()), kernel_test_name);

// Whatever the head dims, the plan finds a kernel by itself.
TEST(HeadDims, Case32_AllAreSupported) {
    const int32_t dims[][2] = {{1, 1},     {3, 3},     {8, 8},     {33, 33},   {40, 40},   {46, 46},   {57, 57},
                               {59, 59},   {80, 80},   {96, 96},   {111, 111}, {120, 120}, {128, 128}, {160, 160},
                               {192, 192}, {256, 256}, {192, 128}, {64, 40},   {640, 640}};
    for (const auto &[head_dim, head_dim_v] : dims) {
        if (test_device() == HEED_CUDA && head_dim > 256) continue;  // the most there
        const Shape shape = {2, 4, 2, 1, 41, head_dim, head_dim_v};
        Shape longer = shape;
        longer.q_len = 9;
        expect_correct(make_attention(shape, Data::normal, 32), CallOptions());
        expect_correct(make_attention(longer, Data::normal, 32), CallOptions());
        // The range of few outputs proves little of 16 bits.
        expect_correct(make_attention(longer, Data::normal, 32, HEED_F16), CallOptions(), {true, false});
        expect_correct(make_attention(longer, Data::normal, 32, HEED_BF16), CallOptions(), {true, false});
        expect_correct(make_attention(longer, Data::normal, 32, HEED_F32, true), CallOptions());
    }
}

}  // namespace
}  // namespace heed_test
