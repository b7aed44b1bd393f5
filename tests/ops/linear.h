// Dense layers in guarded memory, and their sums in double.
#pragma once

#include <cmath>
#include <deque>
#include <memory>

#include "runtime/ops/linear.h"
#include "tests/ops/device_call.h"
#include "tests/ops/tensor.h"

namespace heed_test::ops {

struct WeightsDeleter {
    void operator()(heed_linear_weights *weights) const { heed_linear_weights_destroy(weights); }
};
using Weights = std::unique_ptr<heed_linear_weights, WeightsDeleter>;

// Signs are random. signs: all magnitudes are 1, so sums are integers; spread: 0.5..1.
enum class Values { signs, spread };

struct PieceShape {
    int32_t num_heads = 1, head_dim = 1;
    Layout layout = Layout::packed;
};

struct LinearShape {
    int32_t batch = 1, len = 5, dim_in = 17;
    std::vector<PieceShape> pieces = {{1, 33, Layout::packed}};
    bool with_bias = true;
    Layout x_layout = Layout::packed, weight_layout = Layout::packed;  // padded: a row_stride beyond dim_in
    Flush flush = Flush::rear;
    Values values = Values::spread;

    int32_t dim_out() const {
        int32_t columns = 0;
        for (const PieceShape &piece : pieces) columns += piece.num_heads * piece.head_dim;
        return columns;
    }
};

// One layer and one call of it.
struct Linear {
    Linear(const LinearShape &shape, heed_dtype dtype)
        : shape(shape), x(dtype, {shape.batch, shape.len, 1, shape.dim_in}, shape.x_layout, shape.flush),
          weight(dtype, {1, 1, shape.dim_out(), shape.dim_in}, shape.weight_layout, shape.flush),
          bias(dtype, {1, 1, 1, shape.dim_out()}, Layout::packed, shape.flush) {
        fill(&x, 1);
        fill(&weight, 2);
        fill(&bias, 3);
        for (const PieceShape &piece : shape.pieces) {
            outs.emplace_back(dtype, Extents{shape.batch, shape.len, piece.num_heads, piece.head_dim}, piece.layout,
                              shape.flush);
            pieces.push_back({piece.num_heads, piece.head_dim, outs.back().tensor(), outs.back().layout, nullptr});
        }
        args = {};
        args.struct_size = sizeof(args);
        args.batch = shape.batch;
        args.len = shape.len;
        args.x = x.tensor();
        args.x_layout = x.layout;
        args.num_outs = static_cast<int32_t>(pieces.size());
        args.outs = pieces.data();
    }

    void fill(Tensor *tensor, uint64_t seed) const {
        Rng rng(seed);
        tensor->for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
            const float sign = rng.below(2) == 0 ? 1.0f : -1.0f, part = static_cast<float>(rng.below(1 << 16));
            tensor->set(a, b, c, d, shape.values == Values::signs ? sign : sign * (0.5f + part * 0x1p-17f));
        });
    }

    heed_status pack() {
        const heed_tensor source = weight.tensor(), bias_source = bias.tensor();
        const int64_t stride = shape.weight_layout == Layout::packed ? 0 : weight.layout.stride[2];
        heed_linear_weights *packed = nullptr;
        const heed_status status = heed_linear_pack(weight.dtype(), shape.dim_in, shape.dim_out(), &source, stride,
                                                    shape.with_bias ? &bias_source : nullptr, &packed);
        weights.reset(packed);
        return status;
    }
    heed_status run() {
        if (test_device() == HEED_CUDA) {
            const heed_tensor source = weight.tensor(), bias_source = bias.tensor();
            return call_linear_on_cuda(weight.dtype(), shape.dim_in, shape.dim_out(), source,
                                       shape.weight_layout == Layout::packed ? 0 : weight.layout.stride[2],
                                       shape.with_bias ? &bias_source : nullptr, args);
        }
        if (weights == nullptr) {
            if (const heed_status status = pack()) return status;
        }
        return heed_linear(weights.get(), &args);
    }

    std::vector<std::vector<unsigned char>> out_bytes() const {
        std::vector<std::vector<unsigned char>> bytes;
        for (const Tensor &out : outs) bytes.push_back(out.bytes());
        return bytes;
    }
    void clear_outs() {
        for (const Tensor &out : outs) std::memset(out.tensor().data, 0xff, out.bytes().size());
    }

    // The sum of one output in double; *magnitude is that of the terms' magnitudes.
    double expected(int64_t b, int64_t t, int64_t column, double *magnitude) const {
        double sum = shape.with_bias ? static_cast<double>(bias.get(0, 0, 0, column)) : 0;
        *magnitude = std::abs(sum);
        for (int64_t k = 0; k < shape.dim_in; k++) {
            const double term = static_cast<double>(x.get(b, t, 0, k)) * weight.get(0, 0, column, k);
            sum += term;
            *magnitude += std::abs(term);
        }
        return sum;
    }

    // Signs: sums are integers that the dtype holds, so results are exact, and one term too few or too many is an error
    // of 1. Spread: a term's product is rounded (not with FMA), then each sum on its way to the last, and the bias
    // joins: at most dim_in + 1 roundings, so by the standard analysis of dot products
    //   |error| <= g * (sum |x w| + |bias|), g = n u / (1 - n u), n = dim_in + 1, u = 2^-24
    // and the result is rounded to the dtype. Terms are at least 1/4, which the bound stays below.
    void expect_correct() const {
        const heed_dtype dtype = x.dtype();
        const double n = (shape.dim_in + 1) * 0x1p-24, g = n / (1 - n);
        const double u = dtype == HEED_F32 ? 0 : unit_roundoff(dtype);
        int64_t first = 0;
        for (const Tensor &out : outs) {
            const int64_t head_dim = out.extents()[3];
            out.for_each([&](int64_t b, int64_t t, int64_t h, int64_t d) {
                double magnitude = 0;
                const double want = expected(b, t, first + h * head_dim + d, &magnitude), got = out.get(b, t, h, d);
                const double exact = g * magnitude, bound = exact + u * (std::abs(want) + exact);
                ASSERT_LT(bound, 0.25);
                if (shape.values == Values::signs) {
                    ASSERT_LE(std::abs(want), 256);
                    ASSERT_EQ(got, want) << b << " " << t << " " << h << " " << d;
                } else {
                    ASSERT_LE(std::abs(got - want), bound) << b << " " << t << " " << h << " " << d;
                }
            });
            first += out.extents()[2] * head_dim;
            EXPECT_TRUE(out.gaps_intact());
        }
    }

    LinearShape shape;
    Tensor x, weight, bias;
    std::deque<Tensor> outs;
    std::vector<heed_linear_out> pieces;
    Weights weights;
    heed_linear_args args;
};

// Random tables of a rotation for heads of one piece.
struct RotationTables {
    RotationTables(int32_t batch, int32_t len, int32_t rotary_dim)
        : cos(HEED_F32, {1, 1, max_position, rotary_dim / 2}), sin(HEED_F32, {1, 1, max_position, rotary_dim / 2}),
          positions(HEED_I32, {1, 1, batch, len}) {
        Rng rng(7);
        cos.fill_normal(5);
        sin.fill_normal(6);
        positions.for_each([&](int64_t a, int64_t z, int64_t b, int64_t t) {
            positions.at<int32_t>(a, z, b, t) = rng.below(max_position);
        });
        tables = {};
        tables.rotary_dim = rotary_dim;
        tables.max_position = max_position;
        tables.cos = cos.tensor();
        tables.sin = sin.tensor();
        tables.positions = &positions.at<int32_t>(0, 0, 0, 0);
    }

    static constexpr int32_t max_position = 31;
    Tensor cos, sin, positions;
    heed_rope_tables tables;
};

}  // namespace heed_test::ops
