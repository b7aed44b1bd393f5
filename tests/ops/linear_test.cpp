// heed_linear against sums in double, and what changes no bit of it.
#include "tests/ops/linear.h"

#include <algorithm>

#include "tests/support/amx_emulator.h"

namespace heed_test::ops {
namespace {

// linear has kernels of its own for AVX-512 and AMX.
std::vector<OpCase> linear_cases() {
    emulate_amx();
    std::vector<OpCase> cases = op_cases();
    if (test_device() == HEED_CUDA || !machine_has(HEED_AVX512)) return cases;
    for (const heed_dtype dtype : {HEED_F32, HEED_F16, HEED_BF16}) cases.push_back({dtype, heed::Isa::avx512});
    if (machine_has(HEED_AVX512_BF16)) cases.push_back({HEED_BF16, heed::Isa::avx512bf16});
    if (machine_has(HEED_AMX)) cases.push_back({HEED_BF16, heed::Isa::amx});
    return cases;
}

class LinearTest : public OpTest {
protected:
    const char *row_bytes(const Tensor &tensor, int64_t row) const {
        return static_cast<const char *>(tensor.tensor().data) + row * tensor.extents()[3] * element_bytes(dtype());
    }
};
INSTANTIATE_TEST_SUITE_P(Ops, LinearTest, testing::ValuesIn(linear_cases()), op_case_name);

TEST_P(LinearTest, MatchesTheSum) {
    if (test_device() == HEED_CPU) {
        expect_kernel(heed::Op::linear, dtype(), dtype());
        expect_kernel(heed::Op::linear_rows, dtype(), dtype());
    }
    const std::vector<int32_t> lens = {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 16, 17, 25, 100};
    const std::vector<int32_t> dims_in = {1, 2, 15, 16, 17, 64, 257};
    const std::vector<int32_t> dims_out = {1, 7, 8, 15, 16, 31, 32, 33, 64, 100};
    for (size_t i = 0; i < lens.size(); i++) {
        for (size_t j = 0; j < dims_out.size(); j++) {
            for (const Values values : {Values::signs, Values::spread}) {
                LinearShape shape;
                shape.len = lens[i];
                shape.dim_in = dims_in[(i + j) % dims_in.size()];
                shape.pieces = {{1, dims_out[j], Layout::packed}};
                shape.with_bias = (i + j) % 2 == 0;
                shape.weight_layout = (i + j) % 3 == 0 ? Layout::padded : Layout::packed;
                shape.flush = values == Values::signs ? Flush::front : Flush::rear;
                shape.values = values;
                Linear linear(shape, dtype());
                ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
                linear.expect_correct();
                if (HasFatalFailure()) FAIL() << "rows " << shape.len << ", " << shape.dim_in << " -> " << dims_out[j];
            }
        }
    }
}

// Pieces and heads that begin anywhere in a panel; sequences and tokens whose strides merge in x, in out, in neither.
TEST_P(LinearTest, PiecesOfAnyLayout) {
    const std::vector<Layout> layouts = {Layout::packed, Layout::bshd, Layout::bhsd, Layout::sbhd, Layout::padded};
    const std::vector<std::pair<int32_t, int32_t>> counts = {{1, 13}, {13, 1}, {3, 4}, {2, 9}};
    for (size_t i = 0; i < counts.size(); i++) {
        for (size_t j = 0; j < layouts.size(); j++) {
            const auto layout = [&](size_t step) { return layouts[(i + j + step) % layouts.size()]; };
            LinearShape shape;
            shape.batch = counts[i].first;
            shape.len = counts[i].second;
            shape.x_layout = layouts[j];
            if (i % 2 == 1) shape.dim_in = 64;  // which tensor cores take
            shape.pieces = {{3, 5, layout(0)}, {2, 16, layout(1)}, {1, 7, layout(2)}, {4, 33, layout(3)}, {5, 1}};
            shape.flush = j % 2 == 0 ? Flush::front : Flush::rear;
            shape.values = i % 2 == 0 ? Values::signs : Values::spread;
            Linear linear(shape, dtype());
            ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
            linear.expect_correct();
            if (HasFatalFailure()) FAIL() << "batch " << shape.batch << ", layout " << j;
        }
    }
}

// More rows than are in scratch at once.
TEST_P(LinearTest, BlocksOfRows) {
    for (const Layout layout : {Layout::packed, Layout::bhsd, Layout::padded}) {
        LinearShape shape;
        shape.batch = 2;
        shape.len = 401;
        shape.x_layout = layout;
        shape.dim_in = layout == Layout::bhsd ? 64 : shape.dim_in;
        shape.pieces = {{2, 9, layout}, {2, 10, layout}};
        shape.values = Values::signs;
        Linear linear(shape, dtype());
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        linear.expect_correct();
    }
}

// Rows of whole chunks of 16 bytes, which tensor cores take, and several tiles of them.
TEST_P(LinearTest, AlignedRows) {
    for (const int32_t dim_in : {8, 64, 72, 136}) {
        for (const auto &[len, dim_out] : {std::make_pair(1, 200), {17, 64}, {130, 70}, {300, 8}}) {
            for (const Values values : {Values::signs, Values::spread}) {
                LinearShape shape;
                shape.len = len;
                shape.dim_in = dim_in;
                shape.pieces = {{1, dim_out}};
                shape.flush = Flush::front;
                shape.values = values;
                Linear linear(shape, dtype());
                ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
                linear.expect_correct();
                if (HasFatalFailure()) FAIL() << "rows " << len << ", " << dim_in << " -> " << dim_out;
            }
        }
    }
}

// Wide rows of which few are in scratch at once: two blocks give the bits of each alone.
TEST_P(LinearTest, BlocksOfWideRows) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.len = 30;
    shape.dim_in = 100'003;
    shape.pieces = {{1, 3}};
    Linear linear(shape, dtype());
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    Tensor alone(dtype(), {1, 1, 1, 3});
    linear.pieces[0].out = alone.tensor();
    linear.args.len = 1;
    for (const int64_t row : {0, 11, 12, 14, 15, 16, 23, 24, 29}) {
        linear.args.x.data = const_cast<char *>(row_bytes(linear.x, row));
        linear.args.x.size = shape.dim_in;
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(std::memcmp(alone.tensor().data, row_bytes(linear.outs[0], row), alone.bytes().size()), 0) << row;
    }
}

// Several tiles of rows take the steps of k in blocks, and convert elements of 16 bits once for all of them. bf16 does
// not hold such sums exactly: the next test has their bits.
TEST_P(LinearTest, BlocksOfSteps) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.len = 97;
    shape.pieces = {{2, 21, Layout::bhsd}, {1, 70, Layout::packed}};
    shape.values = Values::signs;
    for (const int32_t dim_in : {300, 1100}) {
        shape.dim_in = dim_in;
        Linear linear(shape, dtype());
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        if (dtype() != HEED_BF16) linear.expect_correct();
    }
}

TEST_P(LinearTest, BlocksOfStepsGiveTheBitsOfRowsAlone) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.len = 97;
    shape.pieces = {{1, 70}};
    // AMX: a step, and many, of a panel that does not fit into L1; dot products of bf16: a pair with one element
    for (const int32_t dim_in : {530, 1100, 301}) {
        shape.dim_in = dim_in;
        Linear linear(shape, dtype());
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        Tensor alone(dtype(), {1, 1, 1, 70});
        linear.args.len = 1;
        linear.pieces[0].out = alone.tensor();
        for (const int64_t row : {0, 11, 12, 31, 47, 48, 95, 96}) {
            linear.args.x.data = const_cast<char *>(row_bytes(linear.x, row));
            linear.args.x.size = shape.dim_in;
            ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
            EXPECT_EQ(std::memcmp(alone.tensor().data, row_bytes(linear.outs[0], row), alone.bytes().size()), 0)
                << dim_in << ", row " << row;
        }
    }
}

// q, k and v side by side in each token of one allocation.
TEST_P(LinearTest, PiecesInterleavedByTokens) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.batch = 3;
    shape.len = 4;
    shape.pieces = {{4, 17}, {2, 17}, {2, 5}};
    const int64_t columns = shape.dim_out(), stride = columns + 3;
    Linear linear(shape, dtype());
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    linear.expect_correct();
    const auto apart = linear.out_bytes();
    for (const Flush flush : {Flush::front, Flush::rear}) {
        GuardedBuffer buffer(static_cast<size_t>((11 * stride + columns) * element_bytes(dtype())), flush);
        int64_t first = 0;
        for (heed_linear_out &piece : linear.pieces) {
            piece.out.data = static_cast<char *>(buffer.data()) + first * element_bytes(dtype());
            piece.out.size = 11 * stride + columns - first;
            piece.layout = {{shape.len * stride, stride, piece.head_dim, 1}};
            first += int64_t{piece.num_heads} * piece.head_dim;
        }
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        const auto *at = static_cast<const unsigned char *>(buffer.data());
        for (size_t row = 0; row < 12; row++) {
            for (const auto &bytes : apart) {
                const size_t size = bytes.size() / 12;
                ASSERT_EQ(std::memcmp(at, bytes.data() + row * size, size), 0) << row;
                at += size;
            }
            const auto *const gap_end = at + (row == 11 ? 0 : 3 * element_bytes(dtype()));
            ASSERT_TRUE(std::all_of(at, gap_end, [](unsigned char byte) { return byte == 0xff; })) << row;
            at = gap_end;
        }
        EXPECT_TRUE(buffer.slack_intact());
    }
}

// What a row gives does not depend on the rows next to it, nor on the register tile that it falls into.
TEST_P(LinearTest, RowsAloneGiveTheSameBits) {
    LinearShape shape;
    shape.len = 44;
    shape.dim_in = 257;
    shape.pieces = {{1, 70}};
    Linear linear(shape, dtype());
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    Tensor some(dtype(), {1, 32, 1, 70});
    std::vector<int32_t> counts = {1, 2, 3, 5, 7, 11, 13, 29};
    if (test_device() == HEED_CPU) {
        for (int32_t i = 0; i < linear.weights->num_tiles; i++) counts.push_back(linear.weights->tiles[i]->rows);
        ASSERT_GT(counts.size(), 8u);
    }
    for (const int32_t count : counts) {
        for (const int32_t row : {0, 3, 12}) {
            std::memset(some.tensor().data, 0xff, some.bytes().size());
            linear.args.len = count;
            linear.args.x.data = const_cast<char *>(row_bytes(linear.x, row));
            linear.args.x.size = int64_t{count} * shape.dim_in;
            linear.pieces[0].out = some.tensor();
            ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
            const auto size = static_cast<size_t>(count * 70 * element_bytes(dtype()));
            EXPECT_EQ(std::memcmp(some.tensor().data, row_bytes(linear.outs[0], row), size), 0) << count << " " << row;
            const auto bytes = some.bytes();
            EXPECT_TRUE(std::all_of(bytes.begin() + static_cast<int64_t>(size), bytes.end(),
                                    [](unsigned char byte) { return byte == 0xff; }));
        }
    }
}

// Layers of few columns read x where it is, in whole and half panels, with tokens of any stride, also where
// rows share sets of the L1 cache. The bits are those of each row alone.
TEST_P(LinearTest, FewColumnsOfManyRows) {
    for (const auto &[batch, len] : {std::make_pair(1, 61), {4, 20}, {60, 1}}) {
        for (const Layout layout : {Layout::packed, Layout::sbhd, Layout::padded}) {
            LinearShape shape;
            shape.batch = batch;
            shape.len = len;
            shape.dim_in = 70;
            shape.x_layout = layout;
            shape.pieces = {{2, 16, layout}, {1, 64}, {1, 7, layout}};
            shape.flush = Flush::front;
            shape.values = Values::signs;
            Linear linear(shape, dtype());
            ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
            linear.expect_correct();
        }
    }
    LinearShape shape;
    shape.len = 61;
    for (const auto &[dim_in, columns] :
         {std::make_pair(257, 7), {257, 47}, {257, 61}, {1024, 7}, {1024, 23}, {2048, 7}, {2048, 23}}) {
        shape.dim_in = dim_in;
        shape.pieces = {{1, columns}};
        Linear linear(shape, dtype());
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        const auto all = linear.out_bytes();
        linear.args.execution.num_threads = 3;
        linear.clear_outs();
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(linear.out_bytes(), all);
        Tensor alone(dtype(), {1, 1, 1, columns});
        linear.pieces[0].out = alone.tensor();
        linear.args.len = 1;
        for (const int64_t row : {0, 11, 12, 35, 47, 48, 60}) {
            linear.args.x.data = const_cast<char *>(row_bytes(linear.x, row));
            linear.args.x.size = shape.dim_in;
            ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
            EXPECT_EQ(std::memcmp(alone.tensor().data, row_bytes(linear.outs[0], row), alone.bytes().size()), 0) << row;
        }
    }
}

TEST_P(LinearTest, ThreadsDoNotChangeABit) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.len = 300;
    shape.dim_in = 1024;
    shape.pieces = {{3, 21, Layout::bhsd}, {1, 40, Layout::packed}};
    Linear linear(shape, dtype());
    linear.args.execution.num_threads = 1;
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    const auto first = linear.out_bytes();
    // The caller's pool, last item first.
    const heed_parallel_for pool = {[](void *, int32_t num_items, void (*item)(void *, int32_t), void *context) {
                                        while (num_items > 0) item(context, --num_items);
                                    },
                                    nullptr};
    for (const int32_t threads : {2, 4, 0, -4}) {
        linear.args.execution.num_threads = std::abs(threads);
        linear.args.execution.pool = threads < 0 ? &pool : nullptr;
        linear.clear_outs();
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(linear.out_bytes(), first) << threads;
    }
}

// Tasks of one thread have tiles of their own, for which AMX takes all steps at once; those of four threads share them.
TEST_P(LinearTest, TasksOfManyRowsGiveTheBitsOfOthers) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.pieces = {{1, 250}, {3, 47, Layout::packed}};
    for (const auto &[len, dim_in] : {std::pair(900, 1025), std::pair(400, 3072)}) {
        shape.len = len;
        shape.dim_in = dim_in;
        Linear linear(shape, dtype());
        linear.args.execution.num_threads = 1;
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        const auto first = linear.out_bytes();
        linear.args.execution.num_threads = 4;
        linear.clear_outs();
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(linear.out_bytes(), first) << dim_in;
    }
}

TEST_P(LinearTest, WorkspacesDoNotChangeABit) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.pieces = {{3, 21, Layout::bhsd}, {1, 40, Layout::packed}};
    Linear linear(shape, dtype());
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    const auto first = linear.out_bytes();
    for (const size_t bytes : {0, 1, 64, 500, 1000, 1 << 16}) {
        const GuardedBuffer workspace(bytes, Flush::front);
        linear.args.execution.workspace = workspace.data();
        linear.args.execution.workspace_bytes = bytes;
        linear.clear_outs();
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(linear.out_bytes(), first) << bytes;
        EXPECT_TRUE(workspace.slack_intact()) << bytes;
    }
}

// NaN and infinity reach the outputs of their row (of x) or column (of the weights) and no other.
TEST_P(LinearTest, NonFiniteValuesStayInTheirRows) {
    LinearShape shape;
    shape.len = 25;
    shape.pieces = {{2, 15, Layout::padded}, {1, 40}};
    Linear linear(shape, dtype());
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    const Linear &plain = linear;
    Linear nonfinite(shape, dtype());
    nonfinite.x.set(0, 3, 0, 2, NAN);
    nonfinite.x.set(0, 5, 0, 0, INFINITY);
    nonfinite.x.set(0, 6, 0, 16, -INFINITY);
    nonfinite.x.set(0, 8, 0, 4, INFINITY);
    nonfinite.x.set(0, 8, 0, 9, -INFINITY);
    std::memset(&nonfinite.x.at<char>(0, 0, 0, 0) + 24 * 17 * element_bytes(dtype()), 0xff,
                static_cast<size_t>(element_bytes(dtype())));  // a NaN that a rounding up would carry to zero
    nonfinite.weight.set(0, 0, 20, 7, NAN);
    nonfinite.weight.set(0, 0, 33, 0, INFINITY);
    nonfinite.bias.set(0, 0, 0, 69, NAN);
    ASSERT_EQ(nonfinite.run(), HEED_OK) << heed_last_error();
    int64_t first = 0, non_finite = 0;
    for (size_t i = 0; i < nonfinite.outs.size(); i++) {
        const Tensor &out = nonfinite.outs[i];
        out.for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
            double magnitude = 0;
            const double want = nonfinite.expected(b, t, first + h * out.extents()[3] + d, &magnitude);
            const float got = out.get(b, t, h, d);
            non_finite += !std::isfinite(want);
            if (std::isnan(want)) {
                ASSERT_TRUE(std::isnan(got)) << t << " " << h << " " << d;
            } else if (std::isinf(want)) {
                ASSERT_EQ(got, want) << t << " " << h << " " << d;
            } else {
                ASSERT_EQ(got, plain.outs[i].get(b, t, h, d)) << t << " " << h << " " << d;
            }
        });
        first += out.extents()[2] * out.extents()[3];
        EXPECT_TRUE(out.gaps_intact());
    }
    EXPECT_EQ(non_finite, 25 * 70 - 20 * 67);
}

TEST_P(LinearTest, RopeOfAPieceIsRopeBehindIt) {
    for (const Layout layout : {Layout::packed, Layout::bhsd, Layout::padded}) {
        LinearShape shape;
        shape.batch = 2;
        shape.pieces = {{3, 18, layout}, {2, 18, layout}};
        Linear linear(shape, dtype());
        RotationTables rotation(shape.batch, shape.len, 14);
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        const auto plain = linear.out_bytes();
        heed_rope_args rope = {};
        rope.struct_size = sizeof(rope);
        rope.dtype = dtype();
        rope.batch = shape.batch;
        rope.len = shape.len;
        rope.num_heads = 3;
        rope.head_dim = 18;
        rope.x = rope.out = linear.outs[0].tensor();
        rope.x_layout = rope.out_layout = linear.outs[0].layout;
        rope.tables = rotation.tables;
        ASSERT_EQ(call_rope(&rope), HEED_OK) << heed_last_error();
        const auto rotated = linear.out_bytes();
        ASSERT_NE(rotated[0], plain[0]);
        linear.clear_outs();
        linear.pieces[0].rope = &rotation.tables;
        ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(linear.out_bytes(), rotated);
    }
}

// Rows that are so far apart that three of them are beyond 32 bits.
TEST_P(LinearTest, RowsFarApart) {
    FOR_THE_CPU();
    LinearShape shape;
    shape.len = 3;
    Linear linear(shape, dtype());
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    const int64_t stride = INT32_MAX, bytes = element_bytes(dtype());
    const ReservedBuffer x((2 * stride + 17) * bytes), out((2 * stride + 33) * bytes);
    const auto row = [&](const ReservedBuffer &buffer, int64_t t) {
        return static_cast<char *>(buffer.data()) + t * stride * bytes;
    };
    for (int64_t t = 0; t < 3; t++) std::memcpy(row(x, t), row_bytes(linear.x, t), static_cast<size_t>(17 * bytes));
    linear.args.x = {x.data(), 2 * stride + 17, dtype()};
    linear.args.x_layout = {{0, stride, 0, 1}};
    linear.pieces[0].out = {out.data(), 2 * stride + 33, dtype()};
    linear.pieces[0].layout = {{0, stride, 33, 1}};
    ASSERT_EQ(linear.run(), HEED_OK) << heed_last_error();
    for (int64_t t = 0; t < 3; t++) {
        EXPECT_EQ(std::memcmp(row(out, t), row_bytes(linear.outs[0], t), static_cast<size_t>(33 * bytes)), 0) << t;
    }
}

}  // namespace
}  // namespace heed_test::ops
