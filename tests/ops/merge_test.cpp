// heed_merge_states against the sum in double, and what it keeps bit by bit.
#include <algorithm>
#include <cmath>
#include <deque>

#include "tests/ops/device_call.h"
#include "tests/ops/tensor.h"

namespace heed_test::ops {
namespace {

struct MergeShape {
    int32_t batch = 2, q_len = 5, num_heads = 3, head_dim_v = 57, num_states = 3;
    Layout outs_layout = Layout::packed, out_layout = Layout::packed;
    Flush flush = Flush::rear;
};

constexpr float minus_infinity = -INFINITY;

struct Merge {
    Merge(const MergeShape &shape, heed_dtype dtype, float lse_scale = 3)
        : shape(shape), out(dtype, extents(), shape.out_layout, shape.flush),
          lse(HEED_F32, lse_extents(), Layout::packed, shape.flush), sink(static_cast<size_t>(shape.num_heads)) {
        Rng rng(5);
        for (float &x : sink) x = lse_scale * rng.normal();
        for (int32_t n = 0; n < shape.num_states; n++) {
            outs.emplace_back(dtype, extents(), shape.outs_layout, shape.flush);
            lses.emplace_back(HEED_F32, lse_extents(), Layout::packed, shape.flush);
            outs.back().fill_normal(static_cast<uint64_t>(n + 1));
            lses.back().for_each([&](int64_t b, int64_t h, int64_t i, int64_t z) {
                lses.back().set(b, h, i, z, lse_scale * rng.normal());
            });
        }
        args = {};
        args.struct_size = sizeof(args);
        args.dtype = dtype;
        args.batch = shape.batch;
        args.q_len = shape.q_len;
        args.num_heads = shape.num_heads;
        args.head_dim_v = shape.head_dim_v;
        args.num_states = shape.num_states;
        args.outs_layout = outs[0].layout;
        args.out_layout = out.layout;
        args.out = out.tensor();
        args.lse = lse.tensor();
    }
    Extents extents() const { return {shape.batch, shape.q_len, shape.num_heads, shape.head_dim_v}; }
    Extents lse_extents() const { return {shape.batch, shape.num_heads, shape.q_len, 1}; }

    heed_status run() {
        out_tensors.clear();
        lse_tensors.clear();
        for (const Tensor &x : outs) out_tensors.push_back(x.tensor());
        for (const Tensor &x : lses) lse_tensors.push_back(x.tensor());
        args.outs = out_tensors.data();
        args.lses = lse_tensors.data();
        return call_merge_states(&args);
    }

    double lse_of(int32_t n, int64_t b, int64_t h, int64_t i) const {
        return lses[static_cast<size_t>(n)].get(b, h, i, 0);
    }

    // Weights of the states; *total is the lse.
    std::vector<double> weights(int64_t b, int64_t h, int64_t i, double *total) const {
        const double s = args.sink == nullptr ? minus_infinity : sink[static_cast<size_t>(h)];
        double max = s, sum = 0;
        for (int32_t n = 0; n < shape.num_states; n++) max = std::max(max, lse_of(n, b, h, i));
        if (max == minus_infinity) {
            *total = minus_infinity;
            return std::vector<double>(outs.size(), 0);
        }
        std::vector<double> w;
        for (int32_t n = 0; n < shape.num_states; n++) w.push_back(std::exp(lse_of(n, b, h, i) - max));
        for (const double x : w) sum += x;
        sum += std::exp(s - max);
        for (double &x : w) x /= sum;
        *total = max + std::log(sum);
        return w;
    }

    void expect_correct() const {
        const double step = 0x1p-23, u = out.dtype() == HEED_F32 ? 0 : 1.01 * unit_roundoff(out.dtype());
        out.for_each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
            double total = 0;
            const std::vector<double> w = weights(b, h, i, &total);
            // A weight errs by 2 roundings, exp2's own error and the rounding of its argument; the denominator by the
            // mean of that; a product and a sum follow per state.
            double want = 0, mean = 0, bound = 0;
            const auto error = [&](size_t n) {
                const double distance = std::abs(lse_of(static_cast<int32_t>(n), b, h, i) - total);
                return w[n] == 0 ? 0 : 4 + std::min(distance, 90.0);
            };
            for (size_t n = 0; n < w.size(); n++) mean += w[n] * error(n);
            for (size_t n = 0; n < w.size(); n++) {
                const double term = w[n] == 0 ? 0 : w[n] * outs[n].get(b, i, h, d);
                want += term;
                bound += std::abs(term) * (error(n) + mean + static_cast<double>(w.size()) + 2) * step;
            }
            bound += u * std::abs(want) + half_smallest(out.dtype()) + 1e-37;
            ASSERT_LE(std::abs(out.get(b, i, h, d) - want), bound) << b << " " << i << " " << h << " " << d;
        });
        lse.for_each([&](int64_t b, int64_t h, int64_t i, int64_t z) {
            double want = 0;
            weights(b, h, i, &want);
            const float got = lse.get(b, h, i, z);
            if (std::isinf(want)) {
                ASSERT_EQ(got, minus_infinity);
            } else {
                ASSERT_LE(std::abs(got - want), 8 * step * std::max(1.0, std::abs(want)));
            }
        });
        EXPECT_TRUE(out.gaps_intact());
        EXPECT_TRUE(lse.gaps_intact());
    }

    MergeShape shape;
    std::deque<Tensor> outs, lses;
    std::vector<heed_tensor> out_tensors, lse_tensors;
    Tensor out, lse;
    std::vector<float> sink;
    heed_merge_args args;
};

class MergeTest : public OpTest {};
INSTANTIATE_TEST_SUITE_P(Ops, MergeTest, testing::ValuesIn(op_cases()), op_case_name);

TEST_P(MergeTest, MatchesTheSum) {
    expect_kernel(heed::Op::merge_states, dtype(), dtype());
    for (const int32_t num_states : {1, 2, 7, test_device() == HEED_CUDA ? 64 : 70}) {
        for (const auto &[q_len, num_heads] : {std::make_pair(5, 3), {1, 16}, {33, 2}, {4, 9}}) {
            for (const int32_t head_dim_v : {1, 40, 57, 128}) {
                MergeShape shape;
                shape.num_states = num_states;
                shape.q_len = q_len;
                shape.num_heads = num_heads;
                shape.head_dim_v = head_dim_v;
                shape.outs_layout = head_dim_v == 40 ? Layout::bhsd : Layout::packed;
                shape.out_layout = head_dim_v == 57 ? Layout::padded : Layout::packed;
                shape.flush = q_len == 1 ? Flush::front : Flush::rear;
                Merge merge(shape, dtype(), head_dim_v == 128 ? 30.0f : 2.0f);
                for (const bool with_sink : {false, true}) {
                    merge.args.sink = with_sink ? merge.sink.data() : nullptr;
                    ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
                    merge.expect_correct();
                }
            }
        }
    }
}

// Values that a round trip through arithmetic could change: zeros of both signs, subnormals, the largest, infinity.
void put_edge_values(Tensor *x) {
    const std::vector<float> values = {0.0f, -0.0f, 6e-8f, -6e-8f, 1e-45f, 65504.0f, INFINITY, -INFINITY, 1.5f};
    size_t next = 0;
    x->for_each(
        [&](int64_t a, int64_t b, int64_t c, int64_t d) { x->set(a, b, c, d, values[next++ % values.size()]); });
}

TEST_P(MergeTest, ASingleStateKeepsItsBits) {
    MergeShape shape;
    shape.num_states = 1;
    Merge merge(shape, dtype(), 1000);
    put_edge_values(&merge.outs[0]);
    merge.lses[0].set(0, 0, 0, 0, -0.0f);
    ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
    EXPECT_EQ(merge.out.bytes(), merge.outs[0].bytes());
    EXPECT_EQ(merge.lse.bytes(), merge.lses[0].bytes());
}

TEST_P(MergeTest, AnEmptyStateChangesNoBit) {
    const float sink_none = minus_infinity;
    for (const size_t full : {0, 1, 2}) {
        for (const bool with_sink : {false, true}) {
            Merge merge(MergeShape(), dtype());
            for (size_t n = 0; n < 3; n++) {
                if (n == full) continue;
                merge.lses[n].for_each(
                    [&](int64_t b, int64_t h, int64_t i, int64_t z) { merge.lses[n].set(b, h, i, z, minus_infinity); });
                merge.outs[n].for_each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
                    merge.outs[n].set(b, i, h, d, d % 2 == 0 ? NAN : INFINITY);  // never looked at
                });
            }
            put_edge_values(&merge.outs[full]);
            std::fill(merge.sink.begin(), merge.sink.end(), sink_none);
            if (with_sink) merge.args.sink = merge.sink.data();
            ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
            EXPECT_EQ(merge.out.bytes(), merge.outs[full].bytes());
            EXPECT_EQ(merge.lse.bytes(), merge.lses[full].bytes());
        }
    }
}

// With two states that have keys, a third that has none changes no bit of what the two give.
TEST_P(MergeTest, AnEmptyStateBesideOthers) {
    MergeShape two;
    two.num_states = 2;
    Merge without(two, dtype()), with(MergeShape(), dtype());
    for (const int32_t empty : {0, 1, 2}) {
        size_t from = 0;
        for (size_t n = 0; n < 3; n++) {
            const bool is_empty = n == static_cast<size_t>(empty);
            with.lses[n].for_each([&](int64_t b, int64_t h, int64_t i, int64_t z) {
                with.lses[n].set(b, h, i, z, is_empty ? minus_infinity : without.lses[from].get(b, h, i, z));
            });
            with.outs[n].for_each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
                with.outs[n].set(b, i, h, d, is_empty ? NAN : without.outs[from].get(b, i, h, d));
            });
            from += is_empty ? 0 : 1;
        }
        ASSERT_EQ(without.run(), HEED_OK) << heed_last_error();
        ASSERT_EQ(with.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(with.out.bytes(), without.out.bytes());
        EXPECT_EQ(with.lse.bytes(), without.lse.bytes());
    }
}

TEST_P(MergeTest, WithoutAnyKey) {
    for (const bool with_sink : {false, true}) {
        Merge merge(MergeShape(), dtype());
        for (Tensor &x : merge.lses) {
            x.for_each([&](int64_t b, int64_t h, int64_t i, int64_t z) { x.set(b, h, i, z, minus_infinity); });
        }
        for (Tensor &x : merge.outs) std::memset(x.tensor().data, 0xff, x.bytes().size());
        if (with_sink) merge.args.sink = merge.sink.data();
        ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
        const auto bytes = merge.out.bytes();
        EXPECT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](unsigned char x) { return x == 0; }));
        merge.lse.for_each([&](int64_t b, int64_t h, int64_t i, int64_t z) {
            ASSERT_EQ(merge.lse.get(b, h, i, z), with_sink ? merge.sink[static_cast<size_t>(h)] : minus_infinity);
        });
    }
}

TEST_P(MergeTest, NanStaysInItsRow) {
    for (const int32_t kind : {0, 1, 2}) {
        Merge merge(MergeShape(), dtype());
        merge.args.sink = merge.sink.data();
        if (kind == 0) merge.lses[1].set(1, 2, 3, 0, NAN);
        if (kind == 1) merge.lses[1].set(1, 2, 3, 0, INFINITY);
        if (kind == 2) merge.sink[2] = NAN;
        ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
        merge.out.for_each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
            const bool hit = h == 2 && (kind == 2 || (b == 1 && i == 3));
            ASSERT_EQ(std::isnan(merge.out.get(b, i, h, d)), hit) << kind;
            ASSERT_EQ(std::isnan(merge.lse.get(b, h, i, 0)), hit) << kind;
        });
    }
    // NaN in one element of a state with keys, however little that state weighs.
    Merge merge(MergeShape(), dtype());
    merge.outs[0].set(0, 1, 0, 7, NAN);
    merge.lses[0].set(0, 0, 1, 0, -1000.0f);
    ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
    merge.out.for_each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
        ASSERT_EQ(std::isnan(merge.out.get(b, i, h, d)), b == 0 && i == 1 && h == 0 && d == 7);
    });
}

// Merging some states first gives what merging all at once gives.
TEST_P(MergeTest, AnyPartitionGivesTheWhole) {
    MergeShape shape;
    shape.num_states = 4;
    Merge whole(shape, HEED_F32), tail(shape, HEED_F32), rest(shape, HEED_F32);
    tail.outs.pop_front();
    tail.lses.pop_front();
    tail.args.num_states = 3;
    ASSERT_EQ(tail.run(), HEED_OK) << heed_last_error();
    rest.args.num_states = 2;
    rest.args.sink = whole.args.sink = whole.sink.data();
    rest.run();
    rest.out_tensors[1] = tail.out.tensor();
    rest.lse_tensors[1] = tail.lse.tensor();
    ASSERT_EQ(call_merge_states(&rest.args), HEED_OK) << heed_last_error();
    ASSERT_EQ(whole.run(), HEED_OK) << heed_last_error();
    whole.out.for_each([&](int64_t b, int64_t i, int64_t h, int64_t d) {
        ASSERT_NEAR(whole.out.get(b, i, h, d), rest.out.get(b, i, h, d), 1e-5);
    });
}

TEST_P(MergeTest, InPlaceThreadsAndWithoutLse) {
    MergeShape shape;
    shape.q_len = 65;
    shape.num_heads = 8;
    shape.head_dim_v = 128;
    shape.outs_layout = shape.out_layout = Layout::bhsd;
    Merge merge(shape, dtype());
    merge.args.execution.num_threads = 1;
    ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
    const auto out = merge.out.bytes(), lse = merge.lse.bytes();
    for (const int32_t threads : {2, 3, 0}) {
        Merge other(shape, dtype());
        other.args.execution.num_threads = threads;
        other.args.out = other.outs[0].tensor();
        other.args.lse = {};
        ASSERT_EQ(other.run(), HEED_OK) << heed_last_error();
        EXPECT_EQ(other.outs[0].bytes(), out);
        const auto untouched = other.lse.bytes();
        EXPECT_TRUE(std::all_of(untouched.begin(), untouched.end(), [](unsigned char x) { return x == 0xff; }));
    }
    EXPECT_EQ(merge.lse.bytes(), lse);
}

TEST(Merge, EmptyProblemsTakeNull) {
    heed_merge_args args = {};
    args.struct_size = sizeof(args);
    args.num_states = 2;
    args.head_dim_v = 8;
    for (int i = 0; i < 3; i++) {
        args.batch = i != 0;
        args.q_len = i != 1;
        args.num_heads = i != 2;
        EXPECT_EQ(heed_merge_states(&args), HEED_OK) << heed_last_error();
    }
}

TEST(Merge, ErrorsNameTheFieldAndWriteNothing) {
    FOR_THE_CPU();
    const heed_status invalid = HEED_INVALID_ARGUMENT;
    struct Case {
        const char *field;
        heed_status status;
        void (*spoil)(Merge &);
    };
    const Case cases[] = {
        {"struct_size", invalid, [](Merge &m) { m.args.struct_size = 1; }},
        {"dtype is i32 (5)", invalid, [](Merge &m) { m.args.dtype = HEED_I32; }},
        {"batch is -1", invalid, [](Merge &m) { m.args.batch = -1; }},
        {"q_len is -2", invalid, [](Merge &m) { m.args.q_len = -2; }},
        {"num_heads is -3", invalid, [](Merge &m) { m.args.num_heads = -3; }},
        {"head_dim_v is 0", invalid, [](Merge &m) { m.args.head_dim_v = 0; }},
        {"head_dim_v is 1000; it must be 1..640", invalid, [](Merge &m) { m.args.head_dim_v = 1000; }},
        {"num_states is 0", invalid, [](Merge &m) { m.args.num_states = 0; }},
        {"outs is NULL", invalid, [](Merge &m) { m.args.outs = nullptr; }},
        {"lses is NULL", invalid, [](Merge &m) { m.args.lses = nullptr; }},
        {"outs[1] is NULL", invalid, [](Merge &m) { m.out_tensors[1].data = nullptr; }},
        {"outs[2].size", invalid, [](Merge &m) { m.out_tensors[2].size--; }},
        {"outs[0].dtype", invalid, [](Merge &m) { m.out_tensors[0].dtype = HEED_BF16; }},
        {"lses[0].dtype", invalid, [](Merge &m) { m.lse_tensors[0].dtype = HEED_F16; }},
        {"lses[2] is NULL", invalid, [](Merge &m) { m.lse_tensors[2].data = nullptr; }},
        {"lse.size", invalid, [](Merge &m) { m.args.lse.size--; }},
        {"out.dtype", invalid, [](Merge &m) { m.args.out.dtype = HEED_F16; }},
        {"out is NULL", invalid, [](Merge &m) { m.args.out.data = nullptr; }},
        {"out_layout", invalid,
         [](Merge &m) {
             m.args.out_layout = {{0, 171, 57, 1}};
         }},
        {"out overlaps outs[1]", invalid, [](Merge &m) { m.args.out = m.out_tensors[1]; }},
        {"out overlaps outs[0]", invalid,
         [](Merge &m) {
             m.args.out = m.out_tensors[0];
             m.args.out_layout = {{855, 57, 285, 1}};
         }},
        {"lse overlaps lses[0]", invalid, [](Merge &m) { m.args.lse = m.lse_tensors[0]; }},
        {"out overlaps sink", invalid, [](Merge &m) { m.args.sink = static_cast<float *>(m.args.out.data) + 4; }},
        {"device", HEED_NO_DEVICE, [](Merge &m) { m.args.execution.device = HEED_CUDA; }},
    };
    for (const Case &c : cases) {
        Merge merge(MergeShape(), HEED_F32);
        ASSERT_EQ(merge.run(), HEED_OK) << heed_last_error();
        c.spoil(merge);
        const auto out = merge.out.bytes(), lse = merge.lse.bytes(), first = merge.outs[0].bytes();
        EXPECT_FAILS(heed_merge_states(&merge.args), c.status, c.field);
        EXPECT_EQ(merge.out.bytes(), out) << c.field;
        EXPECT_EQ(merge.lse.bytes(), lse) << c.field;
        EXPECT_EQ(merge.outs[0].bytes(), first) << c.field;
    }
    EXPECT_FAILS(heed_merge_states(nullptr), invalid, "args is NULL");
}

}  // namespace
}  // namespace heed_test::ops
