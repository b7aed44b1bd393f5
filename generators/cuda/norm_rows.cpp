#include "generators/cuda/norm_rows.h"

#include "generators/common/ceil_div.h"
#include "generators/cuda/index_math.h"
#include "generators/cuda/intrinsics.h"
#include "generators/cuda/layer_program.h"

namespace heed::cuda {

using namespace Halide;

namespace {

// n = (x - mean) * factor of a row x, of either kernel.
HEED_LAUNCH_ARGUMENTS(NormInputs, HEED_CUDA_LAYER_NORM)
HEED_LAUNCH_ARGUMENTS(NormGradientInputs, HEED_CUDA_LAYER_NORM_GRADIENT)

template <typename Inputs>
class NormRows : LayerProgram {
public:
    NormRows(const std::string &name, ElementType type) : LayerProgram(name, type) {}

    // y = n * weight + bias
    Module forward(const Target &target) {
        each_row([&](int width) {
            const Moments m = moments(width);
            each_group(width, [&](const Expr &e) {
                Elements values = load(x_row, e, width);
                const Elements w = load_floats(code, in.weight_first + bytes_of(e, 4), width),
                               b = load_floats(code, in.bias_first + bytes_of(e, 4), width);
                for (size_t i = 0; i < values.size(); i++) {
                    values[i] = code.let("y", (values[i] - m.mean) * m.factor * w[i] + b[i]);
                }
                elements.store(at(x_row, e), values);
            });
        });
        return launch(in, ceil_div(in.rows, warps), target);
    }

    // dx = factor * (g - mean(g) - n * mean(g * n)), g = dy * weight (Ba, Kiros, Hinton 2016, arXiv:1607.06450)
    Module backward(const Target &target) {
        each_row([&](int width) {
            const Expr dy_row = code.let("dy_row", in.dy_first + row_offset);
            const Moments m = moments(width);
            const auto normal = [&](const Expr &value) { return (value - m.mean) * m.factor; };
            const auto weighted = [&](const Expr &e) {
                Elements g = load(dy_row, e, width);
                const Elements w = load_floats(code, in.weight_first + bytes_of(e, 4), width);
                for (size_t i = 0; i < g.size(); i++) g[i] = g[i] * w[i];
                return g;
            };
            const Expr mean_g = mean(width, weighted);
            const Expr mean_gn = mean(width, [&](const Expr &e) {
                Elements g = weighted(e);
                const Elements values = load(x_row, e, width);
                for (size_t i = 0; i < g.size(); i++) g[i] = g[i] * normal(values[i]);
                return g;
            });
            each_group(width, [&](const Expr &e) {
                const Elements values = load(x_row, e, width), of_y = load(dy_row, e, width), g = weighted(e);
                Elements dx, product;
                for (size_t i = 0; i < g.size(); i++) {
                    const Expr n = code.let("n", normal(values[i]));
                    dx.push_back(code.let("dx", m.factor * (g[i] - mean_g - n * mean_gn)));
                    product.push_back(code.let("product", of_y[i] * n));
                }
                const Expr element = cast<uint64_t>(row) * cast<uint64_t>(in.length) + cast<uint64_t>(e);
                store_floats(code, in.products_first + element * cast<uint64_t>(4), product);
                elements.store(at(dy_row, e), dx);
            });
        });
        return launch(in, ceil_div(in.rows, warps), target);
    }

private:
    const Inputs in;
    static constexpr int warps = layer_threads / 32;

    struct Moments {
        Expr mean, factor;
    };

    Expr row, lane, row_offset, x_row;

    Expr at(const Expr &first, const Expr &e) { return first + bytes_of(e, elements.size()); }
    Elements load(const Expr &first, const Expr &e, int width) { return elements.load(at(first, e), width); }

    // body(elements at a time) for this warp's row.
    void each_row(const std::function<void(int)> &body) {
        const Expr thread = Launch::thread(name);
        row = code.let("row", Launch::block(name) * warps + thread / 32);
        code.when(row < in.rows, [&] {
            lane = code.let("lane", thread % 32);
            row_offset = code.let("row_offset", cast<uint64_t>(row) * bytes_of(in.length, elements.size()));
            x_row = code.let("x_row", in.x_first + row_offset);
            code.when(
                in.wide != 0, [&] { body(elements.width()); }, [&] { body(1); });
        });
    }

    // body(first element) for this lane's groups of `width` elements of the row.
    void each_group(int width, const std::function<void(const Expr &)> &body) {
        code.loop("round", ceil_div(in.length, 32 * width), [&](const Expr &round) {
            const Expr e = code.let("e", (round * 32 + lane) * width);
            code.when(e < in.length, [&] { body(e); });
        });
    }

    // Of what `terms` makes of each group of the row, the same in all lanes.
    Expr mean(int width, const std::function<Elements(const Expr &)> &terms) {
        const Registers total = code.registers("total", Float(32), 1);
        code.set(total, 0, 0.f);
        each_group(width, [&](const Expr &e) {
            for (const Expr &term : terms(e)) code.set(total, 0, total[0] + term);
        });
        for (const int mask : {1, 2, 4, 8, 16}) {
            const Expr other = code.let("other", from_lane(total[0], mask));
            code.set(total, 0, total[0] + other);
        }
        return code.let("mean", strict_float(total[0] / cast<float>(in.length)));
    }

    Moments moments(int width) {
        const Expr center = mean(width, [&](const Expr &e) { return load(x_row, e, width); });
        const Expr variance = mean(width, [&](const Expr &e) {
            Elements values = load(x_row, e, width);
            for (Expr &value : values) value = (value - center) * (value - center);
            return values;
        });
        return {center, code.let("factor", strict_float(1.f / sqrt(variance + in.epsilon)))};
    }
};

}  // namespace

Module layer_norm_module(const std::string &name, ElementType type, const Target &target) {
    return NormRows<NormInputs>(name, type).forward(target);
}

Module layer_norm_gradient_module(const std::string &name, ElementType type, const Target &target) {
    return NormRows<NormGradientInputs>(name, type).backward(target);
}

}  // namespace heed::cuda
