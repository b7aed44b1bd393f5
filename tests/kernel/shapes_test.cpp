// Lengths around the blocks, group sizes, head dims, data kinds: the values of out and lse.
#include "runtime/reference/element.h"
#include "tests/support/expect.h"

namespace heed_test {
namespace {

class Shapes : public KernelTest {
protected:
    // Lengths that a block of `block` keys or rows may get wrong.
    static std::vector<int32_t> lengths(int32_t block) {
        return {1, 2, block - 1, block, block + 1, 37, 3 * block + 1};
    }
};

class HeadDims : public KernelTest {
protected:
    bool serves(int32_t head_dim, int32_t head_dim_v) const {
        return std::max(head_dim, head_dim_v) <= kernel().most_head_dim();
    }
};

TEST_P(Shapes, KeyLengths) {
    int32_t n = 0;
    for (const int32_t kv_len : some(lengths(kernel().info.kv_block), 3)) {
        Shape shape = kernel().shape();
        shape.num_heads = 2;
        shape.kv_len = kv_len;
        shape.q_len = n % 2 == 0 ? 3 : 1;
        Attention a = kernel().attention(shape, Data::normal, static_cast<uint64_t>(kv_len));
        a.causal = n++ % 2 == 0;
        a.position = HEED_BOTTOM_RIGHT;
        expect_correct(a, options());
    }
}

// Where some rows see a key and others do not, keys are computed in units of up to 16.
TEST_P(Shapes, KeyLengthsAroundMaskedBlocks) {
    for (const int32_t kv_len : some<int32_t>({15, 16, 17, 31, 33})) {
        Shape shape = kernel().shape();
        shape.q_len = 2;
        shape.kv_len = kv_len;
        expect_correct(kernel().attention(shape, Data::normal, static_cast<uint64_t>(kv_len)), options());
    }
}

TEST_P(Shapes, QueryLengths) {
    for (const int32_t q_len : some(lengths(kernel().info.row_block), 3)) {
        if (q_len == 0) continue;  // row_block 1; adversarial case 2
        Shape shape = kernel().shape();
        shape.num_heads = 2;
        shape.q_len = q_len;
        shape.kv_len = 67;
        Attention a = kernel().attention(shape, Data::normal, static_cast<uint64_t>(q_len));
        expect_correct(a, options());
        a.causal = true;
        expect_correct(a, options());
    }
}

// A step of prefill has a copy for each number of vectors of rows, of 4 to 16.
TEST_P(Shapes, VectorsOfQueries) {
    for (const int32_t q_len : some<int32_t>({8, 9, 16, 17, 32, 33})) {
        for (const int32_t kv_len : {22, 23}) {
            Shape shape = kernel().shape();
            shape.num_heads = 2;
            shape.q_len = q_len;
            shape.kv_len = kv_len;
            Attention a = kernel().attention(shape, Data::normal, static_cast<uint64_t>(q_len));
            a.causal = kv_len == 22;
            expect_correct(a, options());
        }
    }
}

TEST_P(Shapes, GroupSizes) {
    // Groups of 1, 1, 2, 3, 4, 7 and all.
    const std::vector<std::array<int32_t, 2>> heads = {{1, 1}, {6, 6}, {6, 3}, {6, 2}, {8, 2}, {7, 1}, {12, 1}};
    for (const auto &[num_heads, num_kv_heads] : some(heads)) {
        for (const int32_t q_len : {1, 5}) {
            Shape shape = kernel().shape();
            shape.batch = 2;
            shape.num_heads = num_heads;
            shape.num_kv_heads = num_kv_heads;
            shape.q_len = q_len;
            shape.kv_len = 35;
            expect_correct(kernel().attention(shape, Data::normal, static_cast<uint64_t>(num_heads)), options());
        }
    }
}

// More heads than rows of a block, or a vector, share the keys, which are split.
TEST_P(Shapes, LargeGroups) {
    const std::vector<std::array<int32_t, 2>> heads = {{16, 1}, {49, 1}, {34, 2}};
    for (const auto &[num_heads, num_kv_heads] : some(heads)) {
        for (const int32_t q_len : {1, 2}) {
            Shape shape = kernel().shape(80, 72);
            shape.batch = 2;
            shape.num_heads = num_heads;
            shape.num_kv_heads = num_kv_heads;
            shape.q_len = q_len;
            shape.kv_len = 3 * kernel().info.kv_block + 5;
            Attention a = kernel().attention(shape, Data::normal, static_cast<uint64_t>(num_heads));
            a.causal = q_len == 2;
            a.position = HEED_BOTTOM_RIGHT;
            CallOptions split = options();
            split.num_splits = q_len == 1 ? 3 : 0;
            expect_correct(a, split);
        }
    }
}

TEST_P(Shapes, SeveralBlocks) {
    Shape shape = kernel().shape();
    shape.batch = 2;
    shape.num_heads = 4;
    shape.num_kv_heads = 2;
    shape.q_len = 2 * std::max(kernel().info.row_block, 16) + 3;
    shape.kv_len = 2 * kernel().info.kv_block + 41;
    enum Visibility { all, causal, windowed };
    for (const Visibility visibility : some<Visibility>({all, causal, windowed}, 1)) {
        Attention a = kernel().attention(shape, Data::normal, 5);
        a.position = HEED_BOTTOM_RIGHT;
        a.causal = visibility != all;
        a.window_left = visibility == windowed ? 70 : -1;
        expect_correct(a, options());
    }
}

TEST_P(Shapes, PeakedData) {
    Shape shape = kernel().shape();
    shape.num_heads = 2;
    shape.q_len = 37;
    shape.kv_len = kernel().info.kv_block + 19;
    expect_correct(kernel().attention(shape, Data::peaked, 11), options(), Trust::peaked());
}

TEST_P(Shapes, SparseIntegers) {
    Shape shape = kernel().shape();
    shape.num_heads = 2;
    shape.q_len = 19;
    shape.kv_len = kernel().info.kv_block + 5;
    expect_correct(kernel().attention(shape, Data::sparse, 12), options());
}

TEST_P(Shapes, Scales) {
    for (const float scale : some<float>({0.0f, -0.3f, 1.0f})) {
        Shape shape = kernel().shape();
        shape.q_len = 9;
        shape.kv_len = 40;
        Attention a = kernel().attention(shape, Data::normal, 13);
        a.scale = scale;
        expect_correct(a, options(), scale == 1 ? Trust::peaked() : Trust());  // logits of N(0, head_dim)
    }
}

TEST_P(HeadDims, Equal) {
    const std::vector<int32_t> head_dims = {1,  2,  3,  8,   15,  16,  17,  33,  40, 46,
                                            57, 59, 80, 111, 120, 160, 192, 256, 640};
    for (const int32_t head_dim : some(head_dims, 4)) {
        if (!serves(head_dim, head_dim)) continue;
        Shape shape = kernel().shape(head_dim, head_dim);
        shape.q_len = 5;
        shape.kv_len = kernel().info.kv_block + 3;
        // The few outputs of such head dims do not spread 100 times as far as the bound of rounded weights.
        const Trust trust = {true, head_dim > 3};
        expect_correct(kernel().attention(shape, Data::normal, static_cast<uint64_t>(head_dim)), options(), trust);
    }
}

TEST_P(HeadDims, Different) {
    const std::vector<std::array<int32_t, 2>> dims = {{192, 128}, {64, 40}, {40, 64}, {1, 640},
                                                      {640, 1},   {57, 3},  {3, 57},  {128, 17}};
    for (const auto &[head_dim, head_dim_v] : some(dims)) {
        if (!serves(head_dim, head_dim_v)) continue;
        Shape shape = kernel().shape(head_dim, head_dim_v);
        shape.q_len = 5;
        shape.num_heads = 2;
        shape.kv_len = kernel().info.kv_block + 3;
        const Trust trust = {true, head_dim_v > 3};
        expect_correct(kernel().attention(shape, Data::normal, static_cast<uint64_t>(head_dim)), options(), trust);
    }
}

std::vector<TableKernel> general_kernels() {
    return only(supported_kernels(), [](const TableKernel &kernel) { return kernel.any_head_dim(); });
}

INSTANTIATE_TEST_SUITE_P(Kernels, Shapes, testing::ValuesIn(supported_kernels()), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, HeadDims, testing::ValuesIn(general_kernels()), kernel_test_name);

// A table without kernels for an ISA that the machine has would leave the suites above silently short.
TEST(Table, HasKernelsForEveryIsa) {
    for (const heed_isa isa : isas_of_device()) {
        int32_t supported = 0, in_table = 0;
        for (const TableKernel &kernel : all_kernels()) {
            if (kernel.info.isa != isa) continue;
            in_table++;
            supported += kernel.info.supported;
        }
        EXPECT_GT(in_table, 0) << isa_name(isa);
        EXPECT_EQ(supported, machine_has(isa) ? in_table : 0) << isa_name(isa);
    }
}

TEST(Table, HasKernelsForEveryTypeAndStorage) {
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) {
        for (const bool int8_kv : {false, true}) {
            for (const heed_kv_storage storage : {HEED_KV_CONTIGUOUS, HEED_KV_PAGED}) {
                const std::vector<TableKernel> kernels = only(supported_kernels(), [&](const TableKernel &kernel) {
                    return kernel.info.dtype == dtype && kernel.int8_kv() == int8_kv && kernel.serves(storage);
                });
                EXPECT_FALSE(kernels.empty())
                    << dtype_name(dtype) << (int8_kv ? " int8" : "") << ", storage " << storage;
                for (const uint32_t feature : {HEED_FEATURE_BIAS, HEED_FEATURE_MASK, HEED_FEATURE_SOFTCAP,
                                               HEED_FEATURE_ALIBI, HEED_FEATURE_DROPOUT}) {
                    const auto serves = [feature](const TableKernel &kernel) { return kernel.has(feature); };
                    EXPECT_TRUE(std::any_of(kernels.begin(), kernels.end(), serves))
                        << dtype_name(dtype) << (int8_kv ? " int8" : "") << ", feature " << feature;
                }
            }
        }
    }
}

}  // namespace
}  // namespace heed_test
