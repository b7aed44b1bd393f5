#pragma once
// Layer norm of rows: out = (x - mean) / sqrt(variance + epsilon) * weight + bias, the variance as the mean of squared
// differences, in float. Ba et al., arXiv 1607.06450.

#include "generators/common/device_memory.h"
#include "generators/common/kernel_arguments.h"
#include "generators/common/sum_in_halves.h"
#include "generators/contract/cuda_layer_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

// The elements of a row, in floats, however they are stored.
struct LayerNormRows {
    Halide::Expr length, epsilon;
    std::function<Halide::Expr(Halide::Expr d, Halide::Expr row)> x;
    std::function<Halide::Expr(Halide::Expr d)> weight, bias;
    Halide::RDom over_d;
    Halide::Expr element;      // of over_d; where sums are of lanes, of LayerNorm::u too
    int lanes = 1;             // more: a sum of a row is one for each of so many lanes, which then are added in halves
    Halide::Expr exists = {};  // of lanes: whether the row has the element
};

struct LayerNorm {
    Halide::Var d{"d"}, row{"row"}, u{"u"};
    Halide::RDom over_d;
    Halide::Func sum{"sum"}, squares{"squares"};  // (row), of lanes (u, row)
    Halide::Func mean{"mean"}, factor{"factor"};  // (row)
    Halide::Func normal{"normal"};                // (d, row)

    explicit LayerNorm(const LayerNormRows &in) : over_d(in.over_d) {
        using Halide::Expr;
        Expr length = Halide::cast<float>(in.length);
        mean(row) = sum_of(in, sum, in.x(in.element, row)) / length;
        Expr difference = in.x(in.element, row) - mean(row);
        factor(row) = 1.f / sqrt(sum_of(in, squares, difference * difference) / length + in.epsilon);
        normal(d, row) = (in.x(d, row) - mean(row)) * factor(row) * in.weight(d) + in.bias(d);
    }

protected:
    Halide::Expr sum_of(const LayerNormRows &in, Halide::Func &sums, const Halide::Expr &term) {
        if (in.lanes == 1) {
            sums(row) += term;
            return sums(row);
        }
        sums(u, row) += select(in.exists, term, 0.f);
        return sum_in_halves(sums, row, 0, in.lanes);
    }
};

HEED_KERNEL_ARGUMENTS(LayerNormArguments, HEED_LAYER_NORM)

struct LayerNormKernel : LayerNormArguments, LayerNorm {
    Halide::Func out{"out"};  // (d, row); may be x itself

    explicit LayerNormKernel(ElementType type) : LayerNormArguments({type}), LayerNorm(rows(type)) {
        out(d, row) = from_float(type, normal(d, row));

        Halide::OutputImageParam buffer = out.output_buffer();
        for (int i = 0; i < 2; i++) {
            x.dim(i).set_min(0).set_extent(buffer.dim(i).extent());
            buffer.dim(i).set_min(0);
        }
        weight.dim(0).set_bounds(0, buffer.dim(0).extent());
        bias.dim(0).set_bounds(0, buffer.dim(0).extent());
        for (Halide::Func f : {mean, factor}) f.output_buffer().dim(0).set_bounds(0, buffer.dim(1).extent());
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline({mean, factor, out}); }

private:
    LayerNormRows rows(ElementType type) const {
        using Halide::Expr;
        Halide::RDom over(0, x.dim(0).extent(), "over_d");
        return {x.dim(0).extent(),
                epsilon,
                [this, type](const Expr &at, const Expr &of_row) { return to_float(type, x(at, of_row)); },
                [this](const Expr &at) { return Expr(weight(at)); },
                [this](const Expr &at) { return Expr(bias(at)); },
                over,
                over.x};
    }
};

// Rows from an address on, which a kernel goes through in chunks of `width` elements; without a bias.
inline LayerNormRows device_rows(ElementType type, int width, const Halide::Expr &length, const Halide::Expr &epsilon,
                                 const Halide::Expr &x_first,
                                 const std::function<Halide::Expr(Halide::Expr d)> &weight) {
    using Halide::Expr;
    const Halide::RDom over(0, width, 0, length / width, "over_d");
    const auto x = [=](const Expr &d, const Expr &row) {
        return float_at(type, after(x_first, row, bytes_of(stored_type(type), length)), d);
    };
    return {length, epsilon, x, weight, [](const Expr &) { return Expr(0.f); }, over, over.y * width + over.x};
}

HEED_KERNEL_ARGUMENTS(LayerNormDeviceArguments, HEED_CUDA_LAYER_NORM)

// Rows at addresses, in place.
struct LayerNormDevice : LayerNormDeviceArguments, Results {
    struct Part : LayerNorm {
        Halide::RDom all;  // element of a chunk, chunk, row
    };
    std::vector<Part> by_width;

    explicit LayerNormDevice(ElementType type) : LayerNormDeviceArguments({type}) {
        for (const int width : {chunk_of(type), 1}) add_part(type, width, (wide != 0) == (width > 1));
    }

private:
    void add_part(ElementType type, int width, const Halide::Expr &on) {
        using Halide::Expr;
        const auto f32_at = [](const Expr &first) {
            return [=](const Expr &d) { return float_at(ElementType::f32, first, d); };
        };
        LayerNormRows in = device_rows(type, width, length, epsilon, x_first, f32_at(weight_first));
        in.bias = f32_at(bias_first);
        by_width.push_back({LayerNorm(in), Halide::RDom(0, width, 0, length / width, 0, select(on, rows, 0), "all")});
        const Part &part = by_width.back();
        const Expr d = part.all.y * width + part.all.x, row = part.all.z;
        const Expr row_first = after(x_first, row, bytes_of(stored_type(type), length));
        add(store_at(row_first, d, from_float(type, part.normal(d, row))));
    }
};

}  // namespace heed
