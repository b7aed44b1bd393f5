// heed_rope against the formula in double.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>

#include "tests/ops/device_call.h"
#include "tests/ops/tensor.h"

namespace heed_test::ops {
namespace {

struct Rope {
    int32_t batch = 2, len = 5, num_heads = 3, head_dim = 57, rotary_dim = 40, max_position = 31;
    bool interleaved = false, listed = true;
    Layout x_layout = Layout::packed, out_layout = Layout::packed;
    Flush flush = Flush::rear;
};

// One call with its tensors.
struct RopeRun {
    RopeRun(const Rope &rope, heed_dtype dtype)
        : shape(rope), x(dtype, {rope.batch, rope.len, rope.num_heads, rope.head_dim}, rope.x_layout, rope.flush),
          out(dtype, {rope.batch, rope.len, rope.num_heads, rope.head_dim}, rope.out_layout, rope.flush),
          cos(HEED_F32, table_extents(rope), Layout::packed, rope.flush),
          sin(HEED_F32, table_extents(rope), Layout::packed, rope.flush),
          positions(HEED_I32, {1, 1, rope.batch, rope.len}, Layout::packed, rope.flush) {
        Rng rng(7);
        x.fill_normal(1);
        cos.for_each([&](int64_t a, int64_t b, int64_t row, int64_t n) {
            const float angle = 3.0f * rng.normal();
            cos.set(a, b, row, n, std::cos(angle));
            sin.set(a, b, row, n, std::sin(angle));
        });
        positions.for_each(
            [&](int64_t, int64_t, int64_t b, int64_t t) { position(b, t) = rng.below(rope.max_position); });
        if (rope.listed) {
            position(0, 0) = rope.max_position - 1;
            position(rope.batch - 1, rope.len - 1) = 0;
        }
        args = {};
        args.struct_size = sizeof(args);
        args.dtype = dtype;
        args.batch = rope.batch;
        args.len = rope.len;
        args.num_heads = rope.num_heads;
        args.head_dim = rope.head_dim;
        args.x = x.tensor();
        args.out = out.tensor();
        args.x_layout = x.layout;
        args.out_layout = out.layout;
        args.tables.rotary_dim = rope.rotary_dim;
        args.tables.interleaved = rope.interleaved;
        args.tables.max_position = rope.listed ? rope.max_position : 0;
        args.tables.cos = cos.tensor();
        args.tables.sin = sin.tensor();
        args.tables.positions = rope.listed ? &position(0, 0) : nullptr;
    }

    static Extents table_extents(const Rope &r) {
        return {1, 1, r.listed ? r.max_position : r.batch * r.len, r.rotary_dim / 2};
    }
    int32_t &position(int64_t b, int64_t t) { return positions.at<int32_t>(0, 0, b, t); }

    // Element d of a row of `in`, rotated; *magnitude is the sum of the terms' magnitudes.
    double expected(const Tensor &in, int64_t b, int64_t t, int64_t h, int64_t d, double *magnitude) {
        *magnitude = 0;
        if (d >= shape.rotary_dim) return in.get(b, t, h, d);
        const int64_t half = shape.rotary_dim / 2, n = shape.interleaved ? d / 2 : d % half;
        const bool first = shape.interleaved ? d % 2 == 0 : d < half;
        const double x0 = in.get(b, t, h, shape.interleaved ? 2 * n : n);
        const double x1 = in.get(b, t, h, shape.interleaved ? 2 * n + 1 : n + half);
        const int64_t row = shape.listed ? position(b, t) : b * shape.len + t;
        const double c = cos.get(0, 0, row, n), s = sin.get(0, 0, row, n);
        *magnitude = first ? std::abs(x0 * c) + std::abs(x1 * s) : std::abs(x1 * c) + std::abs(x0 * s);
        return first ? x0 * c - x1 * s : x1 * c + x0 * s;
    }

    void expect_correct(const Tensor &in, const Tensor &result) {
        const double u = result.dtype() == HEED_F32 ? 0 : 1.01 * unit_roundoff(result.dtype());
        result.for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
            double magnitude = 0;
            const double want = expected(in, b, t, h, d, &magnitude), got = result.get(b, t, h, d);
            // Two products and a sum, each rounded once.
            const double bound = 2 * 0x1p-23 * magnitude + u * std::abs(want) + half_smallest(result.dtype());
            ASSERT_LE(std::abs(got - want), magnitude == 0 ? 0 : bound) << b << " " << t << " " << h << " " << d;
        });
    }

    Rope shape;
    Tensor x, out, cos, sin, positions;
    heed_rope_args args;
};

class RopeTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Ops, RopeTest, testing::ValuesIn(op_cases()), op_case_name);

// f16 and bf16.
class RopeHalfTest : public OpTest {};
std::vector<OpCase> half_cases() {
    std::vector<OpCase> cases = op_cases();
    cases.erase(std::remove_if(cases.begin(), cases.end(), [](const OpCase &c) { return c.dtype == HEED_F32; }),
                cases.end());
    return cases;
}
INSTANTIATE_TEST_SUITE_P(Ops, RopeHalfTest, testing::ValuesIn(half_cases()), op_case_name);

TEST_P(RopeTest, MatchesTheFormula) {
    expect_kernel(heed::Op::rope, dtype(), dtype());
    for (const bool interleaved : {false, true}) {
        for (const bool listed : {false, true}) {
            for (const int32_t rotary_dim : {0, 2, 14, 16, 40, 56, 64, 128}) {
                for (const Layout layout : {Layout::packed, Layout::bhsd, Layout::padded}) {
                    Rope rope;
                    rope.interleaved = interleaved;
                    rope.listed = listed;
                    rope.rotary_dim = rotary_dim;
                    rope.head_dim = rotary_dim <= 57 ? 57 : rotary_dim;
                    rope.x_layout = layout == Layout::bhsd ? Layout::sbhd : layout;
                    rope.out_layout = layout;
                    rope.flush = rotary_dim % 3 == 0 ? Flush::front : Flush::rear;
                    RopeRun run(rope, dtype());
                    ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
                    run.expect_correct(run.x, run.out);
                    EXPECT_TRUE(run.out.gaps_intact());
                }
            }
        }
    }
}

TEST_P(RopeTest, InPlaceGivesTheSameBits) {
    for (const bool interleaved : {false, true}) {
        for (const int32_t rotary_dim : {2, 16, 40, 56}) {
            Rope rope;
            rope.interleaved = interleaved;
            rope.rotary_dim = rotary_dim;
            rope.x_layout = rope.out_layout = Layout::padded;
            RopeRun run(rope, dtype());
            ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
            run.args.out = run.args.x;
            ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
            EXPECT_EQ(run.x.bytes(), run.out.bytes());
        }
    }
}

TEST_P(RopeTest, ThreadsDoNotChangeABit) {
    FOR_THE_CPU();
    Rope rope;
    rope.len = 301;
    rope.num_heads = 16;
    rope.head_dim = rope.rotary_dim = 128;
    RopeRun run(rope, dtype());
    run.args.execution.num_threads = 1;
    ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
    const auto first = run.out.bytes();
    for (const int32_t threads : {2, 3, 0}) {
        run.args.execution.num_threads = threads;
        std::memset(run.args.out.data, 0xff, first.size());
        ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
        EXPECT_EQ(run.out.bytes(), first);
    }
}

// Rows of one token are 2^33 bytes apart: no 32-bit stride reaches from head to head.
TEST_P(RopeTest, StridesBeyond32Bits) {
    FOR_THE_CPU();
    Rope rope;
    rope.batch = rope.len = 1;
    rope.num_heads = 2;
    RopeRun run(rope, dtype());
    const int64_t stride = int64_t{1} << 33;
    const size_t bytes = static_cast<size_t>(stride + 64) * static_cast<size_t>(element_bytes(dtype()));
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    run.args.out = {memory, stride + rope.head_dim, dtype()};
    run.args.out_layout = {{0, 0, stride, 1}};
    ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
    for (int64_t h = 0; h < 2; h++) {
        const auto *row = static_cast<const char *>(memory) + h * stride * element_bytes(dtype());
        std::memcpy(&run.out.at<char>(0, 0, 0, 0) + h * rope.head_dim * element_bytes(dtype()), row,
                    static_cast<size_t>(rope.head_dim * element_bytes(dtype())));
    }
    munmap(memory, bytes);
    run.expect_correct(run.x, run.out);
}

// The payload is all ones: a rounding that carries would turn it into a zero.
TEST_P(RopeTest, NanOfTheTableStaysNan) {
    Rope rope;
    rope.listed = false;
    RopeRun run(rope, dtype());
    for (int64_t n = 0; n < rope.rotary_dim / 2; n++) run.cos.at<uint32_t>(0, 0, 2, n) = 0x7fffffffu;
    ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
    run.out.for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
        ASSERT_EQ(std::isnan(run.out.get(b, t, h, d)), b == 0 && t == 2 && d < rope.rotary_dim) << d;
    });
}

TEST_P(RopeTest, NanStaysInItsPair) {
    Rope rope;
    RopeRun run(rope, dtype());
    run.x.set(0, 0, 0, 3, NAN);
    ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
    run.out.for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
        const bool hit = b == 0 && t == 0 && h == 0 && (d == 3 || d == 3 + rope.rotary_dim / 2);
        ASSERT_EQ(std::isnan(run.out.get(b, t, h, d)), hit) << d;
    });
}

// Every bit pattern goes through the conversions: a rotation by 0 degrees.
TEST_P(RopeHalfTest, ConversionsKeepEveryValue) {
    Rope rope;
    rope.batch = 1;
    rope.len = 512;
    rope.num_heads = 2;
    rope.head_dim = rope.rotary_dim = 64;
    rope.max_position = 1;
    RopeRun run(rope, dtype());
    uint32_t next = 0;
    run.x.for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
        // The partner is +0, so that a * 1 - 0 * 0 and 0 * 1 + a * 0 hold the value and a zero or NaN.
        run.x.at<uint16_t>(b, t, h, d) = d < 32 ? static_cast<uint16_t>(next++) : uint16_t{0};
    });
    std::fill_n(&run.cos.at<float>(0, 0, 0, 0), 32, 1.0f);
    std::fill_n(&run.sin.at<float>(0, 0, 0, 0), 32, 0.0f);
    std::fill_n(&run.position(0, 0), rope.len, 0);
    for (int half = 0; half < 2; half++) {
        ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
        run.x.for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
            if (d >= 32) return;
            const float want = run.x.get(b, t, h, d), got = run.out.get(b, t, h, d);
            if (std::isnan(want)) {
                ASSERT_TRUE(std::isnan(got));
            } else {
                ASSERT_EQ(got, want) << run.x.at<uint16_t>(b, t, h, d);
            }
            run.x.at<uint16_t>(b, t, h, d) ^= 0x8000u;
        });
    }
}

// Products of every size, so that results meet ties, subnormals and overflow; rounded half to even.
TEST_P(RopeHalfTest, RoundsHalfToEven) {
    Rope rope;
    rope.batch = 1;
    rope.len = 1024;
    rope.num_heads = 1;
    rope.head_dim = rope.rotary_dim = 64;
    rope.max_position = rope.len;
    RopeRun run(rope, dtype());
    Rng rng(3);
    const int bits = dtype() == HEED_F16 ? 10 : 7;
    for (int64_t t = 0; t < rope.len; t++) {
        run.position(0, t) = static_cast<int32_t>(t);
        for (int64_t n = 0; n < 32; n++) {
            // x * cos has at most a few bits more than the dtype: exact in f32, often a tie.
            const float x = std::ldexp(static_cast<float>(rng.below(2 << bits)), rng.between(-20, 6) - bits);
            run.x.set(0, t, 0, n, x);
            run.x.set(0, t, 0, n + 32, 0);
            const int exponent = dtype() == HEED_F16 ? rng.between(-12, 12) : rng.between(-125, 122);
            run.cos.set(0, 0, t, n, std::ldexp(static_cast<float>(rng.between(1, 7)), exponent));
            run.sin.set(0, 0, t, n, 0);
        }
    }
    ASSERT_EQ(call_rope(&run.args), HEED_OK) << heed_last_error();
    for (int64_t t = 0; t < rope.len; t++) {
        for (int64_t n = 0; n < 32; n++) {
            const float product = run.x.get(0, t, 0, n) * run.cos.get(0, 0, t, n);
            ASSERT_EQ(run.out.at<uint16_t>(0, t, 0, n), to_bits(dtype(), product)) << product;
        }
    }
}

TEST(Rope, EmptyProblemsTakeNull) {
    heed_rope_args args = {};
    args.struct_size = sizeof(args);
    args.head_dim = 8;
    args.tables.rotary_dim = 8;
    for (int i = 0; i < 3; i++) {
        args.batch = i != 0;
        args.len = i != 1;
        args.num_heads = i != 2;
        EXPECT_EQ(heed_rope(&args), HEED_OK) << heed_last_error();
    }
}

TEST(Rope, ErrorsNameTheFieldAndWriteNothing) {
    FOR_THE_CPU();
    struct Case {
        const char *field;
        heed_status status;
        void (*spoil)(RopeRun &);
    };
    const heed_status invalid = HEED_INVALID_ARGUMENT;
    const Case cases[] = {
        {"struct_size", invalid, [](RopeRun &r) { r.args.struct_size = 0; }},
        {"struct_size", invalid, [](RopeRun &r) { r.args.struct_size += 8; }},
        {"dtype", invalid, [](RopeRun &r) { r.args.dtype = HEED_I8; }},
        {"x.dtype", invalid, [](RopeRun &r) { r.args.x.dtype = HEED_F16; }},
        {"batch", invalid, [](RopeRun &r) { r.args.batch = -1; }},
        {"len", invalid, [](RopeRun &r) { r.args.len = INT32_MIN; }},
        {"num_heads", invalid, [](RopeRun &r) { r.args.num_heads = -3; }},
        {"head_dim", invalid, [](RopeRun &r) { r.args.head_dim = 0; }},
        {"head_dim is 641; it must be 1..640", HEED_INVALID_ARGUMENT, [](RopeRun &r) { r.args.head_dim = 641; }},
        {"rotary_dim", invalid, [](RopeRun &r) { r.args.tables.rotary_dim = 41; }},
        {"rotary_dim", invalid, [](RopeRun &r) { r.args.tables.rotary_dim = 58; }},
        {"rotary_dim", invalid, [](RopeRun &r) { r.args.tables.rotary_dim = -2; }},
        {"max_position", invalid, [](RopeRun &r) { r.args.tables.max_position = -1; }},
        {"interleaved", invalid, [](RopeRun &r) { std::memset(&r.args.tables.interleaved, 2, 1); }},
        {"x is NULL", invalid, [](RopeRun &r) { r.args.x.data = nullptr; }},
        {"out is NULL", invalid, [](RopeRun &r) { r.args.out.data = nullptr; }},
        {"tables.cos is NULL", invalid, [](RopeRun &r) { r.args.tables.cos.data = nullptr; }},
        {"tables.sin.size", invalid, [](RopeRun &r) { r.args.tables.sin.size--; }},
        {"out.size", invalid, [](RopeRun &r) { r.args.out.size--; }},
        {"aligned", invalid, [](RopeRun &r) { r.args.x.data = static_cast<char *>(r.args.x.data) + 1; }},
        {"stride", invalid,
         [](RopeRun &r) {
             r.args.out_layout = {{0, 57, 0, 1}};
         }},
        {"stride", HEED_UNSUPPORTED,
         [](RopeRun &r) {
             r.args.x_layout = {{-855, 171, 57, 1}};
         }},
        {"overlaps x", invalid,
         [](RopeRun &r) {
             r.args.out = r.args.x;
             r.args.out.data = static_cast<float *>(r.args.x.data) + 1;
             r.args.batch = 1;
         }},
        {"overlaps x", invalid,
         [](RopeRun &r) {  // the same memory in another layout
             r.args.out = r.args.x;
             r.args.out_layout = {{855, 57, 285, 1}};
         }},
        {"overlaps tables.cos", invalid, [](RopeRun &r) { r.args.tables.cos = r.args.out; }},
        {"tables.positions[1][2] is 31", invalid, [](RopeRun &r) { r.position(1, 2) = 31; }},
        {"tables.positions[0][4] is -1", invalid, [](RopeRun &r) { r.position(0, 4) = -1; }},
        {"num_threads", invalid, [](RopeRun &r) { r.args.execution.num_threads = -1; }},
        {"device", HEED_NO_DEVICE, [](RopeRun &r) { r.args.execution.device = HEED_CUDA; }},
        {"device", invalid, [](RopeRun &r) { r.args.execution.device = static_cast<heed_device>(7); }},
    };
    for (const Case &c : cases) {
        RopeRun run(Rope(), HEED_F32);
        const auto x = run.x.bytes(), out = run.out.bytes();
        c.spoil(run);
        EXPECT_FAILS(call_rope(&run.args), c.status, c.field);
        EXPECT_EQ(run.x.bytes(), x) << c.field;
        EXPECT_EQ(run.out.bytes(), out) << c.field;
    }
    EXPECT_FAILS(heed_rope(nullptr), HEED_INVALID_ARGUMENT, "args is NULL");
}

}  // namespace
}  // namespace heed_test::ops
