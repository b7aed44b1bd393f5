// Layouts, strides, alignment, guard pages: the same problem gives the same bits wherever its elements are.
#include <cstring>

#include "tests/support/expect.h"

namespace heed_test {
namespace {

class Layouts : public KernelTest {
protected:
    Attention attention(int32_t q_len, int32_t kv_len, int32_t num_kv_heads = 2) const {
        Attention a = grouped(q_len, kv_len, 21, 4, num_kv_heads);
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        return a;
    }
    CallOptions contiguous() const { return options().with_storage(HEED_Q_DENSE, HEED_KV_CONTIGUOUS); }
    int32_t some_keys() const { return kernel().info.kv_block + 19; }
};

TEST_P(Layouts, AllGiveTheSameBits) {
    for (const int32_t q_len : {1, 11}) {
        const Attention a = attention(q_len, some_keys());
        const Result packed = expect_correct(a, options());
        for (const Layout layout : {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded}) {
            for (const Flush flush : {Flush::rear, Flush::front}) {
                expect_same_bits(expect_runs(a, options().with_layout(layout).with_flush(flush)), packed);
            }
        }
    }
}

TEST_P(Layouts, EachTensorHasItsOwn) {
    const Attention a = attention(5, some_keys());
    const Result packed = expect_correct(a, options());
    CallOptions mixed = options();
    mixed.q = Layout::bhsd;
    mixed.k = Layout::padded;
    mixed.v = Layout::sbhd;
    mixed.out = Layout::padded;
    expect_same_bits(expect_runs(a, mixed), packed);
}

TEST_P(Layouts, StridesOfExtentOneMeanNothing) {
    Shape shape = kernel().shape();
    shape.kv_len = 33;
    const Attention a = kernel().attention(shape, Data::normal, 22);  // batch, heads and q_len are 1
    const Result packed = expect_correct(a, options());
    for (const Layout layout : {Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded}) {
        CallOptions garbage = options().with_layout(layout);
        garbage.garbage_strides = true;
        expect_same_bits(expect_runs(a, garbage), packed);
    }
}

TEST_P(Layouts, AnyAlignment) {
    const Attention a = attention(9, 50);
    const Result packed = expect_correct(a, options());
    for (const int32_t offset : some<int32_t>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 3)) {
        CallOptions shifted = options();
        shifted.offset = offset;
        expect_same_bits(expect_runs(a, shifted), packed);
    }
}

// Keys shared by all sequences or heads: stride 0.
TEST_P(Layouts, BroadcastKeysAndValues) {
    Attention a = attention(9, 50, 4);
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t j = 0; j < a.kv_len; j++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                std::copy_n(a.k_row(0, j, 0), a.head_dim, a.k_row(b, j, g));
                std::copy_n(a.v_row(0, j, 0), a.head_dim_v, a.v_row(b, j, g));
            }
        }
    }
    const Result full = expect_correct(a, contiguous());
    Call call(a, contiguous());
    call.problem.k_layout = {{0, a.head_dim, 0, 1}};
    call.problem.v_layout = {{0, a.head_dim_v, 0, 1}};
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    EXPECT_EQ(call.args.k.size, int64_t{a.kv_len} * a.head_dim);
    expect_same_bits(call.out(), full.out, "out");
}

TEST_P(Layouts, StridedLse) {
    const Attention a = attention(9, 50);
    const Result packed = expect_correct(a, options());
    Call call(a, options());
    call.problem.lse_layout = {{3, 7, 100, 1}};
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    EXPECT_TRUE(call.canaries_intact());
    expect_same_bits(call.lse(), packed.lse, "lse");
    expect_same_bits(call.out(), packed.out, "out");
}

TEST_P(Layouts, WithoutLse) {
    const Attention a = attention(9, 50);
    const Result with = expect_correct(a, options());
    CallOptions without = options();
    without.want_lse = false;
    expect_same_bits(expect_runs(a, without), with);
}

// What an execute leaves in the workspace is nothing to the next.
TEST_P(Layouts, WorkspaceContentsDoNotMatter) {
    const Attention a = attention(9, some_keys());
    Call call(a, options());
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    const std::vector<float> first = call.out();
    for (int32_t byte : {0x00, 0x7f, 0xff}) {
        std::memset(call.args.workspace, byte, call.args.workspace_bytes);
        ASSERT_EQ(call.execute(), HEED_OK) << heed_last_error();
        expect_same_bits(call.out(), first, "out");
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Layouts, testing::ValuesIn(supported_kernels()), kernel_test_name);

// Enough blocks of rows to repay copies of keys and values, where these are apart.
class CopiedKeys : public Layouts {
protected:
    Attention many_rows() const {
        const int32_t rows = kernel().info.row_block;
        Attention a = grouped(2 * rows + 5, 8 * rows, 21, 16, 2);
        a.causal = true;
        a.position = HEED_BOTTOM_RIGHT;
        return a;
    }
    // Keys in place and copies of them in `storage`: of a thread's head, and of all for threads that are more than
    // heads.
    void expect_one_result(const Attention &a, const CallOptions &storage) const {
        const Result copied = expect_correct(a, storage);
        CallOptions other = storage;
        for (const Layout layout : {Layout::bhsd, Layout::padded}) {
            for (const int32_t threads : {3, 5}) {
                expect_same_bits(expect_runs(a, other.with_layout(layout).with_threads(threads)), copied);
            }
        }
    }
    void expect_copies(const Attention &a, int32_t threads) const {
        CallOptions of_threads = contiguous();
        Call call(a, of_threads.with_threads(threads));
        ASSERT_EQ(call.prepare(), HEED_OK) << heed_last_error();
        const std::string text = heed_plan_explain(call.plan());
        const auto has = [&](const char *part) { return text.find(part) != std::string::npos; };
        EXPECT_TRUE(has("copies of keys") || has("packed keys")) << text;
    }
};

TEST_P(CopiedKeys, OfOneLength) {
    const Attention a = many_rows();
    expect_one_result(a, contiguous());
    for (const int32_t threads : {1, 3, 5}) expect_copies(a, threads);
}

// Loops of as many iterations as there are tasks, which pack blocks of keys: they copy nothing.
TEST_P(CopiedKeys, OfAsManyBlocksAsTasks) {
    Attention a = grouped(kernel().info.row_block, 8 * block(), 21, 16, 2);
    expect_one_result(a, contiguous());
    expect_copies(a, 2);
}

// Each task sees other keys of its head.
TEST_P(CopiedKeys, OfAWindow) {
    Attention a = many_rows();
    a.window_left = 2 * kernel().info.row_block;
    a.window_right = 7;
    a.causal = false;
    expect_one_result(a, contiguous());
}

TEST_P(CopiedKeys, OfLengths) {
    Attention a = many_rows();
    a.window_left = block();
    a.kv_lens = {a.kv_len - 3, std::min(block() + 40, a.kv_len)};
    for (int32_t b = 0; b < a.batch; b++) {
        for (int32_t j = a.kv_lens[b]; j < a.kv_len; j++) {
            for (int32_t g = 0; g < a.num_kv_heads; g++) {
                std::fill_n(a.k_row(b, j, g), a.head_dim, std::nanf(""));
                std::fill_n(a.v_row(b, j, g), a.head_dim_v, std::nanf(""));
            }
        }
    }
    expect_one_result(a, contiguous());
}

TEST_P(CopiedKeys, OfRaggedSequences) {
    Attention a = many_rows();
    a.q_lens = {a.q_len, 17};
    a.kv_lens = {a.kv_len - 3, 40};
    expect_one_result(a, options().with_storage(HEED_Q_VARLEN, HEED_KV_VARLEN));
}

// The place of keys does not change what happens to logits: the plain kernel of a head dim stands for its others.
std::vector<TableKernel> kernels_that_copy() {
    return on_cpu(only(supported_kernels(), [](const TableKernel &kernel) {
        return !kernel.decode() && !kernel.int8_kv() && (kernel.any_head_dim() || kernel.info.features == 0);
    }));
}

std::vector<TableKernel> masking_kernels_that_copy() {
    return on_cpu(only(kernels_with(HEED_FEATURE_MASK),
                       [](const TableKernel &kernel) { return !kernel.decode() && !kernel.int8_kv(); }));
}

INSTANTIATE_TEST_SUITE_P(Kernels, CopiedKeys, testing::ValuesIn(kernels_that_copy()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CopiedKeys);

// Kernels of floats that know no pages, and those that read 16-bit keys as floats.
class GatheredKeys : public CopiedKeys {};

TEST_P(GatheredKeys, OfPages) {
    const Attention a = many_rows();
    const Result in_a_row = expect_correct(a, contiguous());
    CallOptions pages = options().with_storage(HEED_Q_DENSE, HEED_KV_PAGED);
    for (const int32_t threads : {1, 3, 5}) expect_same_bits(expect_runs(a, pages.with_threads(threads)), in_a_row);
}

std::vector<TableKernel> kernels_that_gather() {
    return on_cpu(only(supported_kernels(), [](const TableKernel &kernel) {
        const bool of_floats = kernel.info.kv_dtype == HEED_F32 && !kernel.paged();
        return !kernel.decode() && of_floats && kernel.info.features == 0;
    }));
}

INSTANTIATE_TEST_SUITE_P(Kernels, GatheredKeys, testing::ValuesIn(kernels_that_gather()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GatheredKeys);

// A kernel that sweeps over masks has a loop of its own for that, over as many tasks where each head has its mask.
class CopiedMaskedKeys : public CopiedKeys {};

TEST_P(CopiedMaskedKeys, GiveTheSameBits) {
    for (const int32_t heads_of_mask : {0, 1}) {
        Attention a = many_rows();
        Rng rng(22);
        add_mask(&a, {1, heads_of_mask, 0, 0}, 0.8, &rng);
        expect_one_result(a, contiguous());
    }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CopiedMaskedKeys, testing::ValuesIn(masking_kernels_that_copy()), kernel_test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CopiedMaskedKeys);

class FusedLayouts : public Layouts {};

TEST_P(FusedLayouts, ViewsOfAFusedQkv) {
    for (const int32_t num_kv_heads : some<int32_t>({4, 2, 1})) {
        Shape shape = kernel().shape(57, 57);
        shape.batch = 2;
        shape.num_heads = 4;
        shape.num_kv_heads = num_kv_heads;
        shape.q_len = shape.kv_len = 37;
        const Attention a = kernel().attention(shape, Data::normal, 23);
        const Result packed = expect_correct(a, contiguous());
        CallOptions fused = contiguous();
        fused.fused_qkv = true;
        for (const Flush flush : {Flush::rear, Flush::front}) {
            expect_same_bits(expect_runs(a, fused.with_flush(flush)), packed);
        }
    }
}

std::vector<TableKernel> kernels_of_one_type_and_head_dim() {
    return only(supported_kernels(), [](const TableKernel &kernel) {
        return kernel.info.head_dim == kernel.info.head_dim_v && !kernel.int8_kv();
    });
}

INSTANTIATE_TEST_SUITE_P(Kernels, FusedLayouts, testing::ValuesIn(kernels_of_one_type_and_head_dim()),
                         kernel_test_name);

class PerLogitLayouts : public Layouts {};

TEST_P(PerLogitLayouts, PaddedMaskAndBias) {
    Attention a = attention(9, 50);
    Rng rng(24);
    add_mask(&a, {0, 0, 0, 0}, 0.7, &rng);
    add_bias(&a, {0, 0, 0, 0}, &rng);
    const Result packed = expect_correct(a, options());
    Call call(a, options());
    const int64_t mask_row = a.kv_len + 3, bias_row = a.kv_len + 5;
    call.problem.mask_layout = {{a.num_heads * a.q_len * mask_row + 1, a.q_len * mask_row, mask_row, 1}};
    call.problem.bias_layout = {{1 + bias_row, a.batch * bias_row + 2, a.num_heads * a.batch * bias_row + 20, 1}};
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    expect_same_bits(call.out(), packed.out, "out");
    expect_same_bits(call.lse(), packed.lse, "lse");
}

// Blocks of keys are whole; the tensor ends with one, or every other row begins at an odd element.
TEST_P(PerLogitLayouts, BiasOfItsType) {
    Attention a = attention(37, 2 * block());
    a.bias_dtype = a.dtype;
    Rng rng(25);
    add_bias(&a, {0, 0, 0, 0}, &rng);
    const Result packed = expect_correct(a, options());
    Call call(a, options());
    const int64_t row = a.kv_len + 1;
    call.problem.bias_layout = {{a.num_heads * a.q_len * row, a.q_len * row, row, 1}};
    ASSERT_EQ(call.run(), HEED_OK) << heed_last_error();
    expect_same_bits(call.out(), packed.out, "out");
    expect_same_bits(call.lse(), packed.lse, "lse");
}

INSTANTIATE_TEST_SUITE_P(Kernels, PerLogitLayouts,
                         testing::ValuesIn(kernels_with(HEED_FEATURE_BIAS | HEED_FEATURE_MASK)), kernel_test_name);

}  // namespace
}  // namespace heed_test
