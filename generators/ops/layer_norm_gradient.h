#pragma once
// Gradients of layer norm, y = (x - mean) * factor * weight + bias with factor = 1 / sqrt(variance + epsilon):
//   dx = factor * (g - mean(g) - n * mean(g * n)), n = (x - mean) * factor, g = dy * weight
//   dweight = sum over rows of dy * n, dbias = sum over rows of dy
// Ba et al., arXiv 1607.06450.

#include "generators/common/ceil_div.h"
#include "generators/ops/layer_norm.h"

namespace heed {

struct LayerNormGradient : LayerNorm {
    Halide::Func sum_g{"sum_g"}, sum_gn{"sum_gn"};      // as sum and squares
    Halide::Func mean_g{"mean_g"}, mean_gn{"mean_gn"};  // (row)
    Halide::Func of_x{"of_x"}, product{"product"};      // (d, row): the gradient of x, dy * n

    LayerNormGradient(const LayerNormRows &in, const std::function<Halide::Expr(Halide::Expr, Halide::Expr)> &dy)
        : LayerNorm(in) {
        using Halide::Expr;
        const auto n = [&](const Expr &at) { return (in.x(at, row) - mean(row)) * factor(row); };
        const auto g = [&](const Expr &at) { return dy(at, row) * in.weight(at); };
        const Expr length = Halide::cast<float>(in.length);
        mean_g(row) = sum_of(in, sum_g, g(in.element)) / length;
        mean_gn(row) = sum_of(in, sum_gn, g(in.element) * n(in.element)) / length;
        of_x(d, row) = factor(row) * (g(d) - mean_g(row) - n(d) * mean_gn(row));
        product(d, row) = dy(d, row) * n(d);
    }
};

HEED_KERNEL_ARGUMENTS(LayerNormGradientArguments, HEED_LAYER_NORM_GRADIENT)
HEED_KERNEL_ARGUMENTS(LayerNormSumsArguments, HEED_LAYER_NORM_SUMS)

struct LayerNormGradientKernel : LayerNormGradientArguments, LayerNormGradient {
    static constexpr int sum_lanes = 16;  // on every instruction set
    Halide::Func dx{"dx"};                // (d, row); may be dy itself

    explicit LayerNormGradientKernel(ElementType type)
        : LayerNormGradientArguments({type}), LayerNormGradient(rows(type), floats(dy, type)) {
        dx(d, row) = from_float(type, of_x(d, row));
        const Halide::Expr length = x.dim(0).extent();
        x.dim(0).set_min(0);
        dy.dim(0).set_bounds(0, length);
        for (Halide::ImageParam buffer : {x, dy}) buffer.dim(1).set_min(0);
        weight.dim(0).set_bounds(0, length);
        for (Halide::Func f : {mean, factor, mean_g, mean_gn}) f.output_buffer().dim(0).set_min(0);
        dx.output_buffer().dim(0).set_bounds(0, length);
        dx.output_buffer().dim(1).set_min(0);
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline({mean, factor, mean_g, mean_gn, dx}); }

private:
    static std::function<Halide::Expr(Halide::Expr, Halide::Expr)> floats(const Halide::ImageParam &stored,
                                                                          ElementType type) {
        return [=](const Halide::Expr &at, const Halide::Expr &of_row) { return to_float(type, stored(at, of_row)); };
    }
    LayerNormRows rows(ElementType type) const {
        using Halide::Expr;
        const Expr length = x.dim(0).extent();
        const Halide::RDom over(0, ceil_div(length, sum_lanes), "over_d");
        const Expr element = over * sum_lanes + Halide::Var("u");
        const auto weights = [this](const Expr &at) { return Expr(weight(at)); };
        const auto no_bias = [](const Expr &) { return Expr(0.f); };
        return {length,
                epsilon,
                floats(x, type),
                weights,
                no_bias,
                over,
                clamp(likely(element), 0, length - 1),
                sum_lanes,
                likely(element < length)};
    }
};

// Sums of columns are of blocks of rows.
struct LayerNormSumsKernel : LayerNormSumsArguments {
    static constexpr int row_block = 64;
    Halide::Var d{"d"}, block{"block"};
    Halide::RDom over_block, over_blocks;
    Halide::Func of_block{"of_block"};  // (d, block): dy * n, dy
    Halide::Func total{"total"};        // (d)
    Halide::Func dweight{"dweight"}, dbias{"dbias"};

    explicit LayerNormSumsKernel(ElementType type) : LayerNormSumsArguments({type}) {
        using namespace Halide;
        Expr rows = x.dim(1).extent();
        over_block = RDom(0, row_block, "over_block");
        over_blocks = RDom(0, ceil_div(rows, row_block), "over_blocks");
        Expr row = block * row_block + over_block;
        over_block.where(row < rows);
        Expr at = unsafe_promise_clamped(row, 0, rows - 1);
        Expr gradient = to_float(type, dy(d, at)), normal = (to_float(type, x(d, at)) - mean(at)) * factor(at);
        of_block(d, block) = Tuple(0.f, 0.f);
        of_block(d, block) = Tuple(of_block(d, block)[0] + gradient * normal, of_block(d, block)[1] + gradient);
        total(d) = Tuple(0.f, 0.f);
        total(d) = Tuple(total(d)[0] + of_block(d, over_blocks)[0], total(d)[1] + of_block(d, over_blocks)[1]);
        dweight(d) = total(d)[0];
        dbias(d) = total(d)[1];

        for (const ImageParam &buffer : {x, dy}) {
            buffer.dim(0).set_min(0);
            buffer.dim(1).set_bounds(0, rows);
        }
        for (const ImageParam &buffer : {mean, factor}) buffer.dim(0).set_bounds(0, rows);
        for (Func f : {dweight, dbias}) f.output_buffer().dim(0).set_bounds(0, x.dim(0).extent());
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline({dweight, dbias}); }
};

HEED_KERNEL_ARGUMENTS(LayerNormGradientDeviceArguments, HEED_CUDA_LAYER_NORM_GRADIENT)

// Rows at addresses: dy becomes dx.
struct LayerNormGradientDevice : LayerNormGradientDeviceArguments, Results {
    struct Part : LayerNormGradient {
        Halide::RDom all;  // element of a chunk, chunk, row
    };
    std::vector<Part> by_width;

    explicit LayerNormGradientDevice(ElementType type) : LayerNormGradientDeviceArguments({type}) {
        for (const int width : {chunk_of(type), 1}) add_part(type, width, (wide != 0) == (width > 1));
    }

private:
    void add_part(ElementType type, int width, const Halide::Expr &on) {
        using Halide::Expr;
        const auto row_at = [=](const Expr &first, ElementType of, const Expr &row) {
            return after(first, row, bytes_of(stored_type(of), length));
        };
        const LayerNormRows in = device_rows(type, width, length, epsilon, x_first, [=](const Expr &at) {
            return float_at(ElementType::f32, weight_first, at);
        });
        const auto dy = [=](const Expr &at, const Expr &row) {
            return float_at(type, row_at(dy_first, type, row), at);
        };
        by_width.push_back(
            {LayerNormGradient(in, dy), Halide::RDom(0, width, 0, length / width, 0, select(on, rows, 0), "all")});
        const Part &part = by_width.back();
        const Expr d = part.all.y * width + part.all.x, row = part.all.z;
        add(store_at(row_at(products_first, ElementType::f32, row), d, part.product(d, row)) +
            store_at(row_at(dy_first, type, row), d, from_float(type, part.of_x(d, row))));
    }
};

}  // namespace heed
