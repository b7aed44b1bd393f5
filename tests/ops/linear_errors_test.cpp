// What heed_linear_pack and heed_linear refuse, and that they write nothing then.
#include <algorithm>

#include "tests/ops/linear.h"

namespace heed_test::ops {
namespace {

constexpr heed_status invalid = HEED_INVALID_ARGUMENT;

struct Pack {
    heed_dtype dtype = HEED_F32;
    int32_t dim_in = 17, dim_out = 33;
    heed_tensor weight, bias;
    int64_t row_stride = 20;
};

TEST(LinearPack, ErrorsNameTheField) {
    struct Case {
        const char *field;
        heed_status status;
        void (*spoil)(Pack &);
    };
    const Case cases[] = {
        {"dtype", invalid, [](Pack &p) { p.dtype = HEED_I8; }},
        {"dtype", invalid, [](Pack &p) { p.dtype = static_cast<heed_dtype>(-1); }},
        {"dim_in", invalid, [](Pack &p) { p.dim_in = 0; }},
        {"dim_in", invalid, [](Pack &p) { p.dim_in = INT32_MIN; }},
        {"dim_out", invalid, [](Pack &p) { p.dim_out = 0; }},
        {"dim_out", invalid, [](Pack &p) { p.dim_out = -33; }},
        {"row_stride", invalid, [](Pack &p) { p.row_stride = 16; }},
        {"row_stride", invalid, [](Pack &p) { p.row_stride = -20; }},
        {"weight", invalid, [](Pack &p) { p.row_stride = INT64_MAX; }},
        {"weight is NULL", invalid, [](Pack &p) { p.weight.data = nullptr; }},
        {"weight.size", invalid, [](Pack &p) { p.weight.size--; }},
        {"weight.size", invalid, [](Pack &p) { p.weight.size = -1; }},
        {"weight.dtype", invalid, [](Pack &p) { p.weight.dtype = HEED_BF16; }},
        {"weight is at", invalid, [](Pack &p) { p.weight.data = static_cast<char *>(p.weight.data) + 2; }},
        {"bias is NULL", invalid, [](Pack &p) { p.bias.data = nullptr; }},
        {"bias.size", invalid, [](Pack &p) { p.bias.size--; }},
        {"bias.dtype", invalid, [](Pack &p) { p.bias.dtype = HEED_F16; }},
        {"bias is at", invalid, [](Pack &p) { p.bias.data = static_cast<char *>(p.bias.data) + 1; }},
        {"dim_in", HEED_UNSUPPORTED,
         [](Pack &p) {
             p.dim_in = INT32_MAX;
             p.dim_out = 1;
             p.row_stride = 0;
             p.weight.size = INT32_MAX;
         }},
    };
    const Tensor weight(HEED_F32, {1, 1, 33, 20}), bias(HEED_F32, {1, 1, 1, 33});
    for (const Case &c : cases) {
        Pack pack;
        pack.weight = weight.tensor();
        pack.weight.size -= 3;
        pack.bias = bias.tensor();
        c.spoil(pack);
        auto *weights = reinterpret_cast<heed_linear_weights *>(&pack);
        EXPECT_FAILS(heed_linear_pack(pack.dtype, pack.dim_in, pack.dim_out, &pack.weight, pack.row_stride, &pack.bias,
                                      &weights),
                     c.status, c.field);
        EXPECT_EQ(weights, nullptr) << c.field;
    }
    const heed_tensor source = weight.tensor();
    heed_linear_weights *weights = nullptr;
    EXPECT_FAILS(heed_linear_pack(HEED_F32, 20, 33, &source, 0, nullptr, nullptr), invalid, "weights is NULL");
    EXPECT_FAILS(heed_linear_pack(HEED_F32, 20, 33, nullptr, 0, nullptr, &weights), invalid, "weight is NULL");
    ASSERT_EQ(heed_linear_pack(HEED_F32, 20, 33, &source, 0, nullptr, &weights), HEED_OK) << heed_last_error();
    heed_linear_weights_destroy(weights);
    heed_linear_weights_destroy(nullptr);
}

// Two pieces of which the first is rotated.
struct Spoilt : Linear {
    Spoilt() : Linear(two_pieces(), HEED_F32), rotation(2, 5, 14) {
        EXPECT_EQ(pack(), HEED_OK) << heed_last_error();
        pieces[0].rope = &rotation.tables;
    }
    static LinearShape two_pieces() {
        LinearShape shape;
        shape.batch = 2;
        shape.pieces = {{3, 18}, {2, 9}};
        return shape;
    }
    // Both pieces in the first one's memory, `distance` elements apart, with these strides of tokens.
    void interleave(int64_t distance, int64_t stride, int64_t other_stride) {
        args.batch = 1;
        args.len = 3;
        pieces[0].layout = {{0, stride, 18, 1}};
        pieces[1].layout = {{0, other_stride, 9, 1}};
        pieces[1].out = pieces[0].out;
        pieces[1].out.data = static_cast<float *>(pieces[0].out.data) + distance;
        pieces[1].out.size -= distance;
    }

    RotationTables rotation;
};

TEST(Linear, ErrorsNameTheFieldAndWriteNothing) {
    struct Case {
        const char *field;
        heed_status status;
        void (*spoil)(Spoilt &);
    };
    const Case cases[] = {
        {"struct_size", invalid, [](Spoilt &s) { s.args.struct_size = 0; }},
        {"struct_size", invalid, [](Spoilt &s) { s.args.struct_size += 8; }},
        {"batch", invalid, [](Spoilt &s) { s.args.batch = -1; }},
        {"len", invalid, [](Spoilt &s) { s.args.len = INT32_MIN; }},
        {"num_outs", invalid, [](Spoilt &s) { s.args.num_outs = 0; }},
        {"num_outs", invalid, [](Spoilt &s) { s.args.num_outs = -2; }},
        {"outs is NULL", invalid, [](Spoilt &s) { s.args.outs = nullptr; }},
        {"x is NULL", invalid, [](Spoilt &s) { s.args.x.data = nullptr; }},
        {"x.size", invalid, [](Spoilt &s) { s.args.x.size--; }},
        {"x.dtype", invalid, [](Spoilt &s) { s.args.x.dtype = HEED_F16; }},
        {"x is at", invalid, [](Spoilt &s) { s.args.x.data = static_cast<char *>(s.args.x.data) + 1; }},
        {"size", invalid, [](Spoilt &s) { s.args.len = 6; }},
        {"x_layout.stride[3]", invalid,
         [](Spoilt &s) {
             s.args.x_layout = {{85, 17, 17, 0}};
         }},
        {"x_layout.stride[1]", HEED_UNSUPPORTED,
         [](Spoilt &s) {
             s.args.x_layout = {{85, -17, 0, 1}};
         }},
        {"x's stride[1]", HEED_UNSUPPORTED,
         [](Spoilt &s) {
             s.args.x_layout = {{0, int64_t{1} << 31, 0, 1}};
         }},
        {"x of [2, 5, 1, 17]", invalid,
         [](Spoilt &s) {
             s.args.x_layout = {{INT64_MAX, INT64_MAX, 0, 1}};
         }},
        {"outs[1].num_heads", invalid, [](Spoilt &s) { s.pieces[1].num_heads = 0; }},
        {"outs[0].num_heads", invalid, [](Spoilt &s) { s.pieces[0].num_heads = -3; }},
        {"outs[1].head_dim", invalid, [](Spoilt &s) { s.pieces[1].head_dim = 0; }},
        {"outs[0].head_dim", invalid, [](Spoilt &s) { s.pieces[0].head_dim = INT32_MIN; }},
        {"outs[0] is NULL", invalid, [](Spoilt &s) { s.pieces[0].out.data = nullptr; }},
        {"outs[1].size", invalid, [](Spoilt &s) { s.pieces[1].out.size--; }},
        {"outs[1].dtype", invalid, [](Spoilt &s) { s.pieces[1].out.dtype = HEED_BF16; }},
        {"outs[0] is at", invalid,
         [](Spoilt &s) { s.pieces[0].out.data = static_cast<char *>(s.pieces[0].out.data) + 3; }},
        {"outs[1]_layout.stride", invalid,
         [](Spoilt &s) {
             s.pieces[1].layout = {{90, 17, 9, 1}};
         }},
        {"outs[1]_layout.stride", HEED_UNSUPPORTED,
         [](Spoilt &s) {
             s.pieces[1].layout = {{90, 18, -9, 1}};
         }},
        {"outs[1]'s stride[0]", HEED_UNSUPPORTED,
         [](Spoilt &s) {
             s.args.len = 1;
             s.pieces[1].layout = {{int64_t{1} << 31, 0, 9, 1}};
         }},
        {"54 columns", invalid, [](Spoilt &s) { s.args.num_outs = 1; }},
        {"columns", invalid, [](Spoilt &s) { s.pieces[1].num_heads = 1; }},
        {"columns", invalid,
         [](Spoilt &s) {
             s.args.batch = 1;
             s.pieces[1].head_dim = 10;
         }},
        {"outs[0] overlaps outs[1]", invalid, [](Spoilt &s) { s.pieces[1].out.data = s.pieces[0].out.data; }},
        {"outs[0] overlaps outs[1]", invalid, [](Spoilt &s) { s.interleave(53, 72, 72); }},
        {"outs[0] overlaps outs[1]", invalid, [](Spoilt &s) { s.interleave(54, 71, 71); }},
        {"outs[0] overlaps outs[1]", invalid, [](Spoilt &s) { s.interleave(54, 72, 73); }},
        {"outs[0] overlaps outs[1]", invalid,  // the last token of one sequence and the first of the next
         [](Spoilt &s) {
             s.interleave(54, 100, 100);
             s.args.batch = 2;
             s.pieces[0].layout.stride[0] = s.pieces[1].layout.stride[0] = 260;
         }},
        {"execution.workspace overlaps tables.cos", invalid,
         [](Spoilt &s) {
             s.args.execution.workspace = s.rotation.tables.cos.data;
             s.args.execution.workspace_bytes = 8;
         }},
        {"outs[1] overlaps x", invalid, [](Spoilt &s) { s.args.x = s.pieces[1].out; }},
        {"execution.workspace overlaps x", invalid,
         [](Spoilt &s) {
             s.args.execution.workspace = s.args.x.data;
             s.args.execution.workspace_bytes = 8;
         }},
        {"execution.workspace overlaps outs[1]", invalid,
         [](Spoilt &s) {
             s.args.execution.workspace = s.pieces[1].out.data;
             s.args.execution.workspace_bytes = 8;
         }},
        {"outs[0] overlaps x", invalid,
         [](Spoilt &s) {
             s.args.x = s.pieces[0].out;
             s.args.x.data = static_cast<float *>(s.args.x.data) + 370;
         }},
        {"rotary_dim", invalid, [](Spoilt &s) { s.rotation.tables.rotary_dim = 15; }},
        {"rotary_dim", invalid, [](Spoilt &s) { s.rotation.tables.rotary_dim = 20; }},
        {"cos.size", invalid, [](Spoilt &s) { s.rotation.tables.cos.size--; }},
        {"positions[1][2] is 31", invalid, [](Spoilt &s) { s.rotation.positions.at<int32_t>(0, 0, 1, 2) = 31; }},
        {"overlaps tables.cos", invalid, [](Spoilt &s) { s.rotation.tables.cos = s.pieces[0].out; }},
        {"outs[1] overlaps tables.sin", invalid,
         [](Spoilt &s) {
             s.rotation.tables.rotary_dim = 8;
             s.rotation.tables.sin = s.pieces[1].out;
         }},
        {"outs[1] overlaps tables.positions",
         invalid,  // the first piece's rotation reads what the second one's columns would be
         [](Spoilt &s) {
             auto *positions = static_cast<int32_t *>(s.pieces[1].out.data);
             std::fill_n(positions, 10, 0);
             s.rotation.tables.positions = positions;
         }},
        {"outs[0] overlaps tables.cos", invalid,  // and the other way round
         [](Spoilt &s) {
             s.rotation.tables.cos = s.pieces[0].out;
             s.rotation.tables.rotary_dim = 8;
             std::swap(s.pieces[0].rope, s.pieces[1].rope);
         }},
        {"num_threads", invalid, [](Spoilt &s) { s.args.execution.num_threads = -1; }},
        {"device", HEED_INVALID_ARGUMENT, [](Spoilt &s) { s.args.execution.device = HEED_CUDA; }},
        {"device", invalid, [](Spoilt &s) { s.args.execution.device = static_cast<heed_device>(7); }},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const Case &c = cases[i];
        Spoilt spoilt;
        c.spoil(spoilt);
        const auto outs = spoilt.out_bytes();
        const auto x = spoilt.x.bytes();
        EXPECT_FAILS(heed_linear(spoilt.weights.get(), &spoilt.args), c.status, c.field) << ", case " << i;
        EXPECT_EQ(spoilt.out_bytes(), outs) << c.field << ", case " << i;
        EXPECT_EQ(spoilt.x.bytes(), x) << c.field << ", case " << i;
    }
    Spoilt good;
    EXPECT_FAILS(heed_linear(nullptr, &good.args), invalid, "weights is NULL");
    EXPECT_FAILS(heed_linear(good.weights.get(), nullptr), invalid, "args is NULL");
    EXPECT_EQ(good.run(), HEED_OK) << heed_last_error();
    good.interleave(54, 72, 72);
    EXPECT_EQ(good.run(), HEED_OK) << heed_last_error();
}

TEST(Linear, EmptyProblemsTouchNothing) {
    for (const bool no_batch : {false, true}) {
        Spoilt empty;
        const auto outs = empty.out_bytes();
        (no_batch ? empty.args.batch : empty.args.len) = 0;
        EXPECT_EQ(empty.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(empty.out_bytes(), outs);
        empty.args.x = {};
        empty.rotation.tables.cos = empty.rotation.tables.sin = {};
        empty.rotation.tables.positions = nullptr;
        for (heed_linear_out &piece : empty.pieces) piece.out = {};
        EXPECT_EQ(empty.run(), HEED_OK) << heed_last_error();
        empty.args.num_outs = 1;
        EXPECT_FAILS(empty.run(), invalid, "columns");
    }
}

// Columns of pieces whose count does not fit 64 bits.
TEST(Linear, HugePiecesDoNotWrapAround) {
    Spoilt empty;
    empty.args.batch = 0;
    const heed_linear_out huge = {INT32_MAX, INT32_MAX, {}, {}, nullptr};
    empty.pieces.assign(5, huge);
    empty.args.outs = empty.pieces.data();
    empty.args.num_outs = 5;
    EXPECT_FAILS(empty.run(), invalid, "columns");
}

}  // namespace
}  // namespace heed_test::ops
