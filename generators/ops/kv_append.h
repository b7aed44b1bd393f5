#pragma once
// Rows on their way into an int8 cache: per row of head_dim elements scale = max|x| / 127, code = x / scale rounded
// half to even. A row of zeros has scale 0 and codes 0; a row with NaN or infinity has scale NaN and codes 0.

#include "generators/common/kernel_arguments.h"
#include "generators/contract/operations.h"

namespace heed {

// Elements in floats, in terms of the variables of a row.
struct QuantisedRows {
    std::vector<Halide::Var> row;
    std::function<Halide::Expr(Halide::Expr d)> x;
    Halide::RDom over_d;
    Halide::Expr element;  // of over_d
};

struct Quantisation {
    static constexpr int32_t nan_bits = 0x7fc00000;
    static constexpr float largest_code = 127.f;

    Halide::Var d{"d"};
    Halide::RDom over_d;
    Halide::Func magnitude{"magnitude"};  // (row) bits of max|x|: ordered as the values, infinity and NaN above all
    Halide::Func scale{"scale"};          // (row)
    Halide::Func codes{"codes"};          // (d, row)

    // Divisions are strict: a product with a reciprocal is not the quotient that the contract names.
    explicit Quantisation(const QuantisedRows &in) : over_d(in.over_d) {
        using Halide::cast, Halide::Expr, Halide::reinterpret;
        const std::vector<Halide::Var> &row = in.row;
        const std::vector<Expr> at(row.begin(), row.end());
        Expr bits = reinterpret<int32_t>(in.x(in.element));
        magnitude(row) = 0;
        magnitude(row) = max(magnitude(at), bits & 0x7fffffff);

        Expr largest = magnitude(at);
        Expr quotient = strict_float(reinterpret<float>(largest) / largest_code);
        scale(row) = reinterpret<float>(select(largest >= infinity_bits, nan_bits, reinterpret<int32_t>(quotient)));

        Expr row_scale = scale(at), scale_bits = reinterpret<int32_t>(row_scale);
        Expr code = round(strict_float(in.x(d) / row_scale));
        std::vector<Halide::Var> of_code = row;
        of_code.insert(of_code.begin(), d);
        codes(of_code) = select(scale_bits == 0 || scale_bits == nan_bits, cast<int8_t>(0),
                                cast<int8_t>(clamp(code, -largest_code, largest_code)));
    }
};

HEED_KERNEL_ARGUMENTS(KvAppendArguments, HEED_KV_APPEND)

struct KvAppendRows : KvAppendArguments {
    Halide::Var head{"head"}, token{"token"};

    explicit KvAppendRows(ElementType type) : KvAppendArguments({type}), type(type) {}

protected:
    const ElementType type;

    QuantisedRows rows() const {
        Halide::RDom over(0, x.dim(0).extent(), "over_d");
        return {
            {head, token}, [this](const Halide::Expr &d) { return to_float(type, x(d, head, token)); }, over, over.x};
    }
};

struct KvAppendKernel : KvAppendRows, Quantisation {
    explicit KvAppendKernel(ElementType type) : KvAppendRows(type), Quantisation(rows()) {
        Halide::OutputImageParam code_buffer = codes.output_buffer(), scale_buffer = scale.output_buffer();
        for (int i = 0; i < 3; i++) {
            x.dim(i).set_min(0);
            code_buffer.dim(i).set_min(0).set_extent(x.dim(i).extent());
        }
        for (int i = 0; i < 2; i++) scale_buffer.dim(i).set_min(0).set_extent(x.dim(i + 1).extent());
    }

    Halide::Pipeline pipeline() const { return Halide::Pipeline({codes, scale}); }
};

}  // namespace heed
