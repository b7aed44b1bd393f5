// Cases 30, 32, 34, 36, 40 and 42: heads, head dims, strides, alignment, and tensors beyond 2^31 elements.
#include <sys/mman.h>

#include "adversarial.h"

namespace heed_test {
namespace {

class Heads : public Adversarial {};

// Logits of 0 and powers of two of keys: every sum is exact.
TEST_P(Heads, Case30_EachHeadReadsItsGroup) {
    const std::vector<std::array<int32_t, 2>> heads = {{8, 2}, {6, 3}, {28, 4}, {64, 8}, {5, 1}, {8, 8}};
    for (const auto &[num_heads, num_kv_heads] : some(heads)) {
        for (const int32_t q_len : {1, 3}) {
            for (const int32_t kv_len : {1, 64}) {
                Attention a = row().attention({2, num_heads, num_kv_heads, q_len, kv_len, 64, 64}, Data::normal, 30);
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
    if (!row().int8_kv()) {
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

// Memory that is there when touched.
class Reserved {
public:
    explicit Reserved(int64_t bytes) : bytes_(static_cast<size_t>(bytes)) {
        data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    ~Reserved() {
        if (data_ != MAP_FAILED) munmap(data_, bytes_);
    }
    Reserved(const Reserved &) = delete;
    Reserved &operator=(const Reserved &) = delete;
    void *data() const { return data_ == MAP_FAILED ? nullptr : data_; }

private:
    size_t bytes_;
    void *data_;
};

class FarRows : public Adversarial {};

// Rows of k and v so far apart that their offsets pass 2^31: right or refused, never another row.
TEST_P(FarRows, Case40_StridesBeyond32Bits) {
    Attention a = row().attention({1, 2, 1, 2, 5, 64, 64}, Data::normal, 40);
    const Result compact = expect_correct(a, contiguous());
    const int64_t rows = a.kv_len - 1, half = int64_t{1} << 31;
    int32_t right = 0;
    for (const int64_t last : {half / 2, half - 64 * rows, half - 1, half, half + 64, 2 * half}) {
        const int64_t stride = last / rows, span = rows * stride + 64;
        const Reserved k(element_bytes(a.dtype) * span), v(element_bytes(a.dtype) * span);
        ASSERT_TRUE(k.data() != nullptr && v.data() != nullptr);
        for (int64_t j = 0; j < a.kv_len; j++) {
            for (int64_t d = 0; d < 64; d++) {
                store(k.data(), j * stride + d, a.dtype, a.k_row(0, j, 0)[d]);
                store(v.data(), j * stride + d, a.dtype, a.v_row(0, j, 0)[d]);
            }
        }
        Call plain(a, contiguous());
        ASSERT_EQ(plain.prepare(), HEED_OK) << heed_last_error();
        heed_problem far = plain.problem;
        far.k_layout = far.v_layout = {{0, stride, 64, 1}};
        const ForcedKernel forced(row().name);
        heed_plan *created = nullptr;
        const heed_status status = heed_plan_create(&far, &created);
        const Plan plan(created);
        if (status != HEED_OK) {
            EXPECT_EQ(status, HEED_UNSUPPORTED) << heed_last_error();
            continue;
        }
        plain.args.k = {k.data(), span, a.dtype};
        plain.args.v = {v.data(), span, a.dtype};
        ASSERT_LE(heed_plan_workspace_bytes(plan.get()), plain.args.workspace_bytes);
        ASSERT_EQ(heed_execute(plan.get(), &plain.args), HEED_OK) << heed_last_error();
        expect_same_bits(plain.out(), compact.out, "out");
        right++;
    }
    EXPECT_GT(right, 0);  // up to 2^30 at least
}

INSTANTIATE_TEST_SUITE_P(Rows, Heads, testing::ValuesIn(rows_of_64()), row_test_name);
INSTANTIATE_TEST_SUITE_P(Rows, FarRows,
                         testing::ValuesIn(only(rows_of_64(), [](const Row &row) { return !row.int8_kv(); })),
                         row_test_name);

class MaskOffsets : public Adversarial {};

// A mask of 2^34 elements: only the diagonal is looked at.
TEST_P(MaskOffsets, Case42_MaskBeyond32Bits) {
    constexpr int64_t len = 131072;
    Attention a = row().attention({1, 1, 1, len, len, 64, 64}, Data::zero);
    for (size_t n = 0; n < a.v.size(); n++) a.v[n] = static_cast<float>(n % 1021);
    a.window_left = a.window_right = 0;
    Call plain(a, options());
    ASSERT_EQ(plain.prepare(), HEED_OK) << heed_last_error();
    for (const bool explicit_mask : {true, false}) {
        heed_problem masked = plain.problem;
        masked.has_mask = masked.mask_true_hides = true;  // untouched memory lets all keys be seen
        if (!explicit_mask) masked.mask_shape[2] = 1;
        const ForcedKernel forced(row().name);
        heed_plan *created = nullptr;
        const heed_status status = heed_plan_create(&masked, &created);
        const Plan plan(created);
        if (status != HEED_OK) {
            EXPECT_TRUE(explicit_mask) << heed_last_error();
            EXPECT_EQ(status, HEED_UNSUPPORTED) << heed_last_error();
            continue;
        }
        const int64_t elements = explicit_mask ? len * len : len;
        const Reserved mask(elements);
        ASSERT_NE(mask.data(), nullptr);
        auto *bytes = static_cast<uint8_t *>(mask.data());
        bytes[elements - 2] = 1;  // hides the key before the last row's own
        heed_args args = plain.args;
        args.mask = {mask.data(), elements, HEED_U8};
        ASSERT_LE(heed_plan_workspace_bytes(plan.get()), args.workspace_bytes);
        ASSERT_EQ(heed_execute(plan.get(), &args), HEED_OK) << heed_last_error();
        const auto *last = static_cast<const float *>(args.out.data) + (len - 1) * 64;
        EXPECT_EQ(std::memcmp(last, a.v_row(0, len - 1, 0), 64 * sizeof(float)), 0);
        bytes[elements - 1] = 1;
        ASSERT_EQ(heed_execute(plan.get(), &args), HEED_OK) << heed_last_error();
        for (int32_t d = 0; d < 64; d++) ASSERT_EQ(last[d], 0);
    }
}

// Prefill rows: for 131072 queries a decode row keeps the states of all of them.
std::vector<Row> masked_prefill_rows() {
    return only(score_rows_of_64(), [](const Row &row) { return row.leads() && !row.decode(); });
}

INSTANTIATE_TEST_SUITE_P(Rows, MaskOffsets, testing::ValuesIn(masked_prefill_rows()), row_test_name);

// Whatever the head dims, the plan finds a row by itself.
TEST(HeadDims, Case32_AllAreSupported) {
    const int32_t dims[][2] = {{1, 1},     {3, 3},     {8, 8},     {33, 33},   {40, 40},   {46, 46},   {57, 57},
                               {59, 59},   {80, 80},   {96, 96},   {111, 111}, {120, 120}, {128, 128}, {160, 160},
                               {192, 192}, {256, 256}, {192, 128}, {64, 40},   {640, 640}};
    for (const auto &[head_dim, head_dim_v] : dims) {
        for (const int32_t q_len : {1, 9}) {
            Attention a = make_attention({2, 4, 2, q_len, 41, head_dim, head_dim_v}, Data::normal, 32);
            expect_correct(a, CallOptions());
        }
    }
}

}  // namespace
}  // namespace heed_test
